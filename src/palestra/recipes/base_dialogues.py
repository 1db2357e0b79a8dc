"""Invented tool dialogues whose every action follows from the text before it.

Which tool is due is said outright or by a rule (a word, or a number over a limit), in the last reply or
in the system prompt. What it is given is found by its label, behind or before a name in a list, in two
lists at once, or among the tool's choices. The surprising choice: nothing is left to chance, so the share
of whole actions predicted exactly says how well the base reads.
"""

from __future__ import annotations

import random

from palestra.recipes.base_texts import action_text, list_text, record_text, shared_lists, system_text
from palestra.recipes.base_words import Key, Value, filler, identifier, make_key, value, word
from palestra.types import Message

LIMITS = (9, 99, 99, 999)


class Scene:
    """One dialogue's schema, rules and what has been said so far."""

    def __init__(self, rng: random.Random) -> None:
        """Draw tools, rules and a topic."""
        self.rng = rng
        keys = [make_key(rng) for _ in range(rng.randint(4, 7))]
        self.keys = list({key.name: key for key in keys}.values())
        self.tools: dict[str, tuple[Key, ...]] = {}
        for _ in range(rng.randint(4, 8)):
            self.tools[identifier(rng)] = tuple(rng.sample(self.keys, rng.choice((0, 1, 1, 1, 2, 2, 3))))
        self.known: dict[Key, Value] = {}
        self.topic = f"{word(rng)} {word(rng)}" if rng.random() < 0.7 else word(rng)
        self.triggers = self._triggers()
        self.limit = rng.choice(LIMITS)
        self.small, self.large = (rng.choice([*self.tools]) for _ in range(2))

    def _triggers(self) -> dict[str, str]:
        count = self.rng.choice((0, 2, 3, 4))
        words = [self.rng.choice((word(self.rng), filler(self.rng))) for _ in range(count)]
        return {trigger: self.rng.choice([*self.tools]) for trigger in words}

    def rules(self) -> str:
        """What the system prompt says on which tool is due."""
        rng = self.rng
        arrow = rng.choice((": ", ": use ", " means ", " then "))
        said = [f"{trigger}{arrow}{tool}" for trigger, tool in self.triggers.items()]
        said.append(f"over {self.limit}{arrow}{self.large}, else {self.small}")
        rng.shuffle(said)
        return rng.choice((". ", "; ", "\n")).join(said)

    def cue(self) -> tuple[str, str]:
        """The tool that is due, and the words that say so."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.25 and self.triggers:
            trigger = rng.choice([*self.triggers])
            return self.triggers[trigger], rng.choice(("{}", "{}", "it is {}", "status {}")).format(trigger)
        if kind < 0.45:
            number = _near(rng, self.limit)
            tool = self.large if number > self.limit else self.small
            return tool, f"{rng.choice(('sum', 'count', 'size', 'weight'))} {number}"
        tool = rng.choice([*self.tools])
        if kind < 0.6:
            return tool, self._local_rule(tool)
        return tool, rng.choice(("next {}", "use {}", "now call {}", "then {}")).format(tool)

    def _local_rule(self, tool: str) -> str:
        rng = self.rng
        label, here, elsewhere = word(rng), word(rng), word(rng)
        other = rng.choice([*self.tools])
        rules = [f"if {label} is {here} use {tool}", f"if {label} is {elsewhere} use {other}"]
        if here == elsewhere:
            rules = rules[:1]
        parts = [f"{label} {here}", *rules]
        rng.shuffle(parts)
        return rng.choice(("; ", ". ", ", ")).join(parts)

    def tell(self, tool: str) -> list[str]:
        """Texts that hold what the tool still lacks, and at times what it has anew."""
        rng = self.rng
        stale = [key for key in self.tools[tool] if key in self.known and rng.random() < 0.3]
        lacking = [key for key in self.tools[tool] if key not in self.known] + stale
        texts, listed = [], None
        if lacking and rng.random() < 0.35:
            listed = lacking.pop(rng.randrange(len(lacking)))
            texts.append(self._list(listed))
        fresh = {key: value(rng, key) for key in lacking}
        spare = rng.choice(self.keys)
        if spare != listed and rng.random() < 0.5:
            fresh.setdefault(spare, value(rng, spare))
        self.known.update(fresh)
        if fresh:
            items = list(fresh.items())
            rng.shuffle(items)
            texts.append(record_text(rng, dict(items)))
        return texts

    def _list(self, key: Key) -> str:
        """A list in which the topic picks the value, or two lists that have only the value in common."""
        rng, names = self.rng, [f"{word(self.rng)} {word(self.rng)}" for _ in range(self.rng.randint(1, 3))]
        if not key.choices and rng.random() < 0.25:
            self.known[key], text = shared_lists(rng, key, names[0])
            return text
        rows = [(name, value(rng, key)) for name in dict.fromkeys([*names, self.topic])]
        rng.shuffle(rows)
        self.known[key] = dict(rows)[self.topic]
        return list_text(rng, rows)

    def speak(self) -> tuple[str, str]:
        """The tool that is due, and a reply from which it and its parameters follow."""
        tool, cue = self.cue()
        texts = [*self.tell(tool), cue]
        self.rng.shuffle(texts)
        return tool, self.rng.choice((". ", ", ", "; ")).join(texts)


def _near(rng: random.Random, limit: int) -> int:
    """A number under or over ``limit``, each half of the time."""
    return (
        rng.randint(limit + 1, limit * 10 + 9) if rng.random() < 0.5 else rng.randint(limit // 10 + 1, limit)
    )


def dialogue(rng: random.Random) -> tuple[Message, ...]:
    """One tool dialogue of three to eight turns."""
    scene = Scene(rng)
    tool, said = scene.speak()
    about = rng.choice(("About {}", "For {}", "{}")).format(scene.topic)
    messages = [
        Message("system", system_text(rng, scene.rules(), scene.tools)),
        Message("user", f"{about}: {said}"),
    ]
    for _ in range(rng.randint(3, 8)):
        values = {key.name: scene.known[key] for key in scene.tools[tool]}
        messages.append(Message("assistant", action_text(tool, values)))
        tool, said = scene.speak()
        messages.append(Message("tool", said))
    return tuple(messages[:-1])
