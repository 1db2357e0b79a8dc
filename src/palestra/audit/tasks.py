"""What the tasks of a world give away, and whether there are enough of them."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from palestra.audit.findings import Attempt, Finding
from palestra.audit.solutions import Solved, call_in
from palestra.audit.subject import Start, Subject, replay
from palestra.tasks import SPLIT_RANGES

_DRAWN = 300
_HELD_OUT = 100
_MOST_COPIES = 0.05
_FIXED = ("look", "1", "a")
"""What is done in a world without tasks to see which one it is."""
_FORESEEN = 0.95
_SAME_ANSWER = 0.85
_SHORTER = 0.75
"""Of an easier level's actions, a harder one needs at least so many."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]|<\|[a-z_]+\|>|</s>|\[/?INST\]")


def enough(subject: Subject) -> Iterator[Finding]:
    """Different seeds make different tasks, and held-out tasks are no copies of training tasks."""
    train = [_content(subject, seed) for seed in range(_DRAWN)]
    different = len(set(train))
    if different == 1:
        yield Finding(
            "tasks",
            "error",
            f"{_DRAWN} seeds make one and the same task",
            "Draw the state from the rng that generate is given (or from reset's seed).",
        )
        return
    if different < _DRAWN * (1 - 4 * _MOST_COPIES):
        yield Finding(
            "tasks",
            "warning",
            f"{_DRAWN} seeds make only {different} different tasks: a policy can learn them by heart",
            "Draw more of the state: names, numbers, order.",
        )
    held_out = [_content(subject, SPLIT_RANGES["test"].start + n) for n in range(_HELD_OUT)]
    copies = sum(each in set(train) for each in held_out) / _HELD_OUT
    if copies > _MOST_COPIES:
        yield Finding(
            "split",
            "error" if copies > 0.5 else "warning",
            f"{copies:.0%} of {_HELD_OUT} test tasks are also among {_DRAWN} training tasks",
            "Draw more of the state, so that held-out tasks are new; a test on seen tasks measures memory.",
        )


def told_by_the_prompt(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """Whether words of the prompt alone foresee the answer: an id, an order or a phrase may give it away."""
    if not subject.has_oracle or subject.tool_env is None:
        return
    seen = [(subject.starts[n], each) for n, each in enumerate(solved.attempts) if each.success]
    if not seen or max(len(each.steps) for _, each in seen) < 2:
        return
    starts = [subject.start(seed) for seed in range(1000, 1000 + _DRAWN)]
    solutions = [(start, subject.solve(start)) for start in starts]
    closed = [(s, each.actions[-1]) for s, each in solutions if each.success and _is_judged(subject, s, each)]
    answers = Counter(answer for _, answer in closed)
    if not 2 <= len(answers) <= 20 or len(closed) < _DRAWN // 2:
        return
    accuracy, base = _foreseen(closed), answers.most_common(1)[0][1] / len(closed)
    if accuracy > _FORESEEN and base < 0.8:
        yield Finding(
            "prompt",
            "warning",
            f"the last action can be foreseen from the prompt's words alone in {accuracy:.0%} of the tasks "
            f"(the commonest is right in {base:.0%}): looking things up decides nothing",
            "Draw ids and wording apart from the answer; let what is looked up decide.",
        )


def evenly_answered(subject: Subject) -> Iterator[Finding]:
    """No choice of the last action is right nearly always, or that is what a policy will always say."""
    if not subject.has_oracle:
        return
    solutions = [subject.solve(subject.start(seed)) for seed in range(1000, 1000 + _HELD_OUT)]
    chosen: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for solution in solutions:
        call = call_in(subject, solution.actions[-1]) if solution.success and solution.steps else None
        if call is not None:
            for name, value in call.parameters.items():
                if "enum" in subject.tools[call.tool_name].parameters.get("properties", {}).get(name, {}):
                    chosen[call.tool_name, name][str(value)] += 1
    for (tool, name), counts in chosen.items():
        value, count = counts.most_common(1)[0]
        if counts.total() >= _HELD_OUT // 2 and count > _SAME_ANSWER * counts.total():
            yield Finding(
                "answers",
                "warning",
                f"{tool} with {name} {value} is right in {count / counts.total():.0%} of the tasks: always "
                "saying it looks like knowing",
                "Draw what decides evenly; make it rare in a test of its own.",
            )


def _is_judged(subject: Subject, start: Start, solution: Attempt) -> bool:
    """Whether the last action is an answer to be found out, and no value copied from the prompt."""
    call = call_in(subject, solution.actions[-1])
    if call is None or start.task is None:
        return False
    properties = subject.tools[call.tool_name].parameters.get("properties", {})
    free = [str(v) for name, v in call.parameters.items() if "enum" not in properties.get(name, {})]
    return not any(value in start.task.prompt for value in free)


def clean_text(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """Texts hold no control characters, halves of pairs, tokens that templates use, or split letters."""
    for attempt in solved.attempts:
        for text in (each.observation for each in attempt.steps):
            found = _CONTROL.search(text)
            if found:
                yield Finding(
                    "text",
                    "warning",
                    f"an observation holds {found[0]!r}, which tokenizers or chat templates read as control",
                    "Clean what comes from outside before it is shown.",
                    attempt,
                )
                return
            if not unicodedata.is_normalized("NFC", text):
                yield Finding(
                    "text",
                    "warning",
                    "an observation holds letters made of several code points, which many tokenizers change: "
                    "what a model copies from it compares unequal",
                    'Show unicodedata.normalize("NFC", text).',
                    attempt,
                )
                return


def levels(subject: Subject) -> Iterator[Finding]:
    """Harder levels take no fewer actions than easier ones."""
    world = subject.tool_env
    if world is None or not subject.has_oracle or len(world.difficulties) < 2:
        return
    hashes = [
        [start.task.content_hash for start in _at(subject, level) if start.task]
        for level in world.difficulties
    ]
    if all(each == hashes[0] for each in hashes):
        yield Finding(
            "levels",
            "warning",
            "the same seeds make the same tasks at every difficulty",
            "Let generate look at difficulty, or declare one level.",
        )
        return
    means = []
    for level in world.difficulties:
        turns = [s.task.optimal_turns for s in _at(subject, level) if s.task and s.task.optimal_turns]
        means.append(sum(turns) / len(turns) if turns else math.nan)
    if any(later < _SHORTER * earlier for earlier, later in itertools.pairwise(means)):
        shown = ", ".join(f"{mean:.1f}" for mean in means)
        yield Finding(
            "levels",
            "warning",
            f"higher difficulties need fewer actions: {shown} on average",
            "Order difficulties from easy to hard; a curriculum climbs them.",
        )


def parts(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """No part of the reward but the outcome makes most of what a solution earns."""
    won = [each for each in solved.attempts if each.success and each.parts]
    if not won:
        return
    shares: defaultdict[str, float] = defaultdict(float)
    for attempt in won:
        for name, value in attempt.parts:
            shares[name] += subject.rubric.weights.get(name, 0.0) * (value or 0.0) / attempt.total / len(won)
    for name, share in shares.items():
        if name != "outcome" and share > 0.5:
            yield Finding(
                "parts",
                "warning",
                f"{name} is {share:.0%} of what a solution earns: the policy will learn that first",
                "Give outcome the largest weight; process suits 20 to 30 %.",
            )


def _at(subject: Subject, level: int) -> list[Start]:
    return [subject.start(seed, level) for seed in range(20)]


def _content(subject: Subject, seed: int) -> str:
    start = subject.start(seed)
    if start.task is not None:
        return start.task.content_hash or start.task.prompt
    played = subject.play(start, replay(_FIXED), max_turns=len(_FIXED))
    return "\n".join([subject.open(start).prompt, *(step.observation for step in played.steps)])


def _foreseen(closed: Sequence[tuple[Start, str]]) -> float:
    """Share of answers that naive Bayes over the prompt's words and their endings foresees, two-fold."""
    halves = closed[::2], closed[1::2]
    right = 0
    for known, asked in (halves, halves[::-1]):
        model = _Bayes(known)
        right += sum(model.guess(start) == answer for start, answer in asked)
    return right / len(closed)


class _Bayes:
    """Naive Bayes over features of prompts."""

    def __init__(self, known: Sequence[tuple[Start, str]]) -> None:
        self._answers = Counter(answer for _, answer in known)
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for start, answer in known:
            self._counts[answer].update(_features(start))

    def guess(self, start: Start) -> str:
        features = _features(start)
        total = sum(self._answers.values())

        def score(answer: str) -> float:
            count = self._answers[answer]
            seen = self._counts[answer]
            return math.log(count / total) + sum(
                math.log((seen[each] + 0.1) / (count + 0.2)) for each in features
            )

        return max(self._answers, key=score)


def _features(start: Start) -> set[str]:
    """Words, word shapes, and rests of numbers."""
    words = re.findall(r"[\w-]+", start.task.prompt if start.task else "")
    found = set(words)
    for word in words:
        found.add(re.sub(r"\d", "0", word))
        if word[-1].isdigit():
            number = int(re.findall(r"\d+", word)[-1][-9:])
            found |= {f"rest {number % of} of {of}" for of in (2, 3, 4, 5, 6, 7, 10)}
        if word[:1].isalpha() and any(letter.isdigit() for letter in word):
            found.add(f"begins {word[0]}")
    return found
