"""``palestra masks``: what of an episode is trained on, and how much each token counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from palestra.pipeline import parse_config
from palestra.pipeline.run import create_run
from palestra.policy.models import load_template
from palestra.policy.nano import NANO_FOLDER
from palestra.types import Facts, Message, StopReason, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="orders/train/1", env="orders", split="train", seed=1, prompt="hi")
PROMPT = (Message("system", "Sort."), Message("user", "Letter 12"))
TEMPLATE = load_template(NANO_FOLDER)


def attempt(name: str, reward: float, *, anew: bool = False, spelled: bool = False) -> Trajectory:
    """Two turns; the first action's ids may be its letters, and the second's context rewritten."""
    look, done = TEMPLATE.encode_action(PROMPT, "look"), TEMPLATE.encode_action(PROMPT, "done")
    if spelled:
        look = [token for letter in "look" for token in TEMPLATE.encode_action(PROMPT, letter)]
    reply = TEMPLATE.render_reply(PROMPT, "look", Message("tool", "to Basel"))
    context = TEMPLATE.render([*PROMPT, Message("user", "so far: Basel")])
    turns = (
        turn("look", (*look, TEMPLATE.end_id), () if anew else tuple(reply[1:])),
        turn("done", (*done, TEMPLATE.end_id), (), tuple(context) if anew else ()),
    )
    return Trajectory(
        id=name,
        task=TASK,
        prompt=PROMPT,
        turns=turns,
        stop_reason=StopReason.terminated,
        success=reward > 0,
        prompt_ids=tuple(TEMPLATE.render(PROMPT)),
        reward=reward,
    )


def turn(action: str, ids: tuple[int, ...], reply: tuple[int, ...], context: tuple[int, ...] = ()) -> Turn:
    logprobs = (-0.25,) * len(ids)
    return Turn(
        action, "to Basel", Facts(), action_ids=ids, sampled_logprobs=logprobs, observation_ids=reply,
        prompt_ids=context,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = parse_config("", ["credit.negative_weight=0.5"])
    made = create_run(tmp_path / "run", "", config, "test")
    attempts = (
        attempt("rl/1/0/0", 1.0),
        attempt("rl/1/0/1", 0.0, anew=True),
        attempt("rl/1/0/2", 0.0, spelled=True),
        attempt("rl/1/0/3", 1.0),
    )
    alike = tuple(attempt(f"rl/1/1/{n}", 1.0) for n in range(2))
    made.write_groups(
        "rl", "update-1", [TrajectoryGroup("rl/1/0", TASK, attempts), TrajectoryGroup("rl/1/1", TASK, alike)]
    )
    made.write_groups("gate", "attempts", [TrajectoryGroup("gate/0", TASK, (attempt("gate/0/0", 1.0),))])
    return made.path


def test_the_first_episode_is_shown_with_the_advantage_it_was_trained_with(palestra, run: Path):
    done = palestra("masks", run)
    assert done.code == 0
    assert "rl/1/0/0 · " in done.out
    assert (
        "<|user|>Letter 12<|end|><|assistant|>look<|end|> ⟨+1.00, logprob -0.25⟩<|tool|>to Basel" in done.out
    )
    assert "0 prefix breaks · 0 of 2 actions would be other ids" in done.out


def test_a_rewritten_context_is_a_second_row_and_a_negative_advantage_is_weighed(palestra, run: Path):
    done = palestra("masks", run, "rl/1/0/1")
    assert "rl/1/0/1 · row 1 of 2" in done.out
    second = done.out[done.out.index("row 2 of 2") :]
    assert "so far: Basel<|end|><|assistant|>done<|end|> ⟨-0.50" in second
    assert "look" not in second
    assert "1 prefix breaks" in done.out


def test_an_action_that_would_be_encoded_otherwise_is_counted(palestra, run: Path):
    assert "1 of 2 actions would be other ids" in palestra("masks", run, "rl/1/0/2").out


def test_a_table_has_a_line_for_every_token(palestra, run: Path):
    done = palestra("masks", run, "rl/1/0/0", "--table")
    lines = [line for line in done.out.splitlines() if line.startswith("│")]
    row = attempt("rl/1/0/0", 1.0)
    length = len(row.prompt_ids) + sum(len(t.action_ids) + len(t.observation_ids) for t in row.turns)
    assert len(lines) == length
    assert sum("yes" in line for line in lines) == sum(len(t.action_ids) for t in row.turns)


def test_an_episode_without_an_advantage_says_why(palestra, run: Path):
    assert "nothing in its group can be compared" in palestra("masks", run, "rl/1/1/0").out
    assert "belong to online learning" in palestra("masks", run, "gate").out


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("collect", "has no episodes of stage 'collect'; it has gate, rl"),
        ("rl/9", "no episode 'rl/9' with token ids"),
    ],
)
def test_what_is_not_there_is_named(palestra, run: Path, wanted: str, message: str):
    done = palestra("masks", run, wanted)
    assert done.code == 2
    assert message in done.err.replace("\n", " ")
