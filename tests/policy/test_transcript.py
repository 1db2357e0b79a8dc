"""What of a long conversation is shown, and the rows that come of it."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.policy import ContextWindow, Transcript
from palestra.policy.models import load_template
from palestra.policy.nano import NANO_FOLDER
from palestra.training import make_segments, tokenize_trajectory
from palestra.types import Facts, Message, StopReason, Task, Trajectory, Turn

TEMPLATE = load_template(NANO_FOLDER)
PROMPT = (Message("system", "Sort."), Message("user", "Letter 12"))
TASK = Task(id="w/train/1", env="w", split="train", seed=1, prompt="Letter 12")


def converse(window: ContextWindow, *turns: tuple[str, str, Facts]):
    """The transcript, and of each turn its context, its action ids and the ids appended after it."""
    transcript, seen, before = Transcript(TEMPLATE, window, PROMPT), [], ()
    for action, observation, facts in turns:
        ids = transcript.encode_action(action)
        before = tuple(transcript.ids)
        anew = transcript.act(ids)
        seen.append((before, anew, ids, transcript.observe(action, observation, facts)))
    return transcript, seen


def look(number: int, records: tuple[str, ...] = ()) -> tuple[str, str, Facts]:
    facts = Facts(tool_name="look", parameters={"letter": str(number)}, key_records=records)
    return f"look {number}", f"letter {number} goes to Basel, weight {number}0", facts


def shown(transcript: Transcript) -> str:
    return TEMPLATE.decode(transcript.ids)


def test_what_fits_is_appended_and_never_rewritten():
    transcript, seen = converse(ContextWindow(400, "summary"), *(look(n) for n in range(4)))
    assert all(anew == () for _, anew, _, _ in seen)
    for (before, _, ids, added), (following, *_) in pairwise(seen):
        assert following == (*before, *ids, *added)
    assert shown(transcript).count("<|assistant|>look") == 4


@pytest.mark.parametrize("mode", ["window", "summary"])
def test_older_turns_are_shortened_where_the_context_is_full_and_the_latest_stay(mode):
    window = ContextWindow(150, mode, raw_turns=2)
    transcript, seen = converse(window, *(look(n) for n in range(9)))
    rewritten = [number for number, (_, anew, _, _) in enumerate(seen) if anew]
    assert rewritten
    assert all(len(before) <= 150 for before, *_ in seen)
    for number in rewritten:
        before, anew, *_ = seen[number]
        text = TEMPLATE.decode(anew)
        assert before == anew
        assert f"<|assistant|>look {number - 1}<|end|>" in text
        assert f"<|assistant|>look {number - 2}<|end|>" in text
        assert "<|assistant|>look 0<|end|>" not in text
        assert text.startswith("<|system|>Sort.<|end|><|user|>Letter 12\n\n")
        assert seen[number - 1][3] == ()
    assert len(shown(transcript)) > 0


def test_a_window_says_how_many_turns_it_does_not_show():
    transcript, _ = converse(ContextWindow(90, "window"), *(look(n) for n in range(8)))
    assert "earlier turns are not shown.)" in shown(transcript)


def test_a_summary_keeps_calls_key_records_and_refusals_and_each_once():
    refused = Facts(valid=False, error="invalid_value", tool_name="stamp", parameters={"value": 9})
    lost = Facts(valid=False, error="no_call", parse_tier="error")
    turns = [
        look(0, ("letter 0: Basel", "weight 0")),
        look(1),
        look(1),
        ("stamp 9", '{"error": "invalid_value"}', refused),
        ("hm", '{"error": "no_call"}', lost),
        look(5),
        look(6),
    ]
    tokens = len(converse(ContextWindow(), *turns)[0].ids) - 1
    transcript, _ = converse(ContextWindow(tokens, "summary", raw_turns=1), *turns)
    text = shown(transcript)
    summary = text[text.index("Earlier") : text.index("<|end|><|assistant|>look")]
    assert summary.splitlines() == [
        "Earlier turns, shortened:",
        "look(letter=0): letter 0: Basel; weight 0",
        "look(letter=1): letter 1 goes to Basel, weight 10",
        "stamp(value=9): refused, invalid_value",
        "an action that was no call: no_call",
        "look(letter=5): letter 5 goes to Basel, weight 50",
    ]


def test_where_a_summary_grows_too_long_the_oldest_lines_without_key_records_go_first():
    turns = [look(0, ("the way is left",)), *(look(n) for n in range(1, 30))]
    transcript, seen = converse(ContextWindow(200, "summary", raw_turns=1), *turns)
    text = shown(transcript)
    assert len(transcript.ids) <= 200
    assert "left out):\nlook(letter=0): the way is left\n" in text
    assert "look(letter=1):" not in text
    assert all(len(before) <= 200 for before, *_ in seen)


def test_full_never_shortens():
    transcript, seen = converse(ContextWindow(60, "full"), *(look(n) for n in range(6)))
    assert all(anew == () for _, anew, _, _ in seen)
    assert len(transcript.ids) > 60
    assert shown(transcript).count("<|assistant|>look") == 6


@pytest.mark.parametrize("mode", ["full", "summary"])
def test_a_huge_observation_keeps_its_ends_and_says_what_is_missing(mode):
    size = 1_000_000
    text = "begin " + "x y " * (size // 4) + " finish"
    transcript, _ = converse(ContextWindow(300, mode), ("look", text, Facts(tool_name="look")))
    said = shown(transcript)
    assert len(transcript.ids) < 300
    assert "begin x y" in said
    assert said.endswith("finish<|end|><|assistant|>")
    assert f"of {len(text):,} characters left out]" in said


def test_a_demonstration_has_the_rows_a_policy_would_have_had_in_the_same_window():
    window = ContextWindow(90, "summary", raw_turns=1)
    turns = [look(n) for n in range(7)]
    _, seen = converse(window, *turns)
    played = Trajectory(
        "t",
        TASK,
        PROMPT,
        tuple(Turn(action, observation, facts) for action, observation, facts in turns),
        StopReason.terminated,
        True,
    )
    made = tokenize_trajectory(played, TEMPLATE, window)
    rows = make_segments(made, [1.0] * 7)
    assert len(rows) == 1 + sum(bool(anew) for _, anew, _, _ in seen) > 1
    places = [(row, at) for row in rows for at in range(len(row.ids))]
    contexts = [row.ids[:at] for row, at in places if row.action_mask[at] and not row.action_mask[at - 1]]
    assert contexts == [before for before, *_ in seen]
    assert all(len(row.ids) <= 90 + max(len(ids) for _, _, ids, _ in seen) for row in rows)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=12), st.text(max_size=200)), min_size=1, max_size=8),
    st.integers(30, 200),
    st.sampled_from(["full", "window", "summary"]),
    st.integers(0, 3),
)
def test_every_action_is_taken_in_what_was_shown_whatever_is_said(said, tokens, mode, raw):
    turns = [(action, observation, Facts(tool_name="t", parameters={})) for action, observation in said]
    _, seen = converse(ContextWindow(tokens, mode, raw), *turns)
    for (before, _, ids, added), (following, anew, *_) in pairwise(seen):
        assert following == (anew or (*before, *ids, *added))
        assert bool(anew) != bool(added)
