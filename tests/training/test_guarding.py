"""What a guard's action does to learner, rate and entropy."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from palestra.errors import ConfigError
from palestra.monitor import Alarm, Guards
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.nano import new_nano, train_tokenizer
from palestra.training import Controls, Critic, CriticSettings, Learner, imitation_loss, save_checkpoint
from palestra.training.guarding import act
from palestra.types import Segment

ROW = Segment("t", (7, 8, 9, 1), (False, True, True, True), (0.0,) * 4, (0.0, 1.0, 1.0, 1.0))


def parts() -> SimpleNamespace:
    critic = Critic(
        new_nano(64, hidden=32, feed_forward=48, heads=2, seed=2), CriticSettings(1e-2, 1, 1, 9, 0)
    )
    learner = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=1))
    return SimpleNamespace(learner=learner, critic=critic, controls=Controls(0.02))


def taught(made: SimpleNamespace, steps: int) -> None:
    for _ in range(steps):
        made.learner.update([ROW], imitation_loss, 1e-2)
        made.critic.fit([ROW], [[1.0] * 3], [[0.0] * 3])


def numbers(made: SimpleNamespace) -> dict[str, list[float]]:
    kept = {**made.learner.model.state_dict(), **made.critic.tensors()}
    return {name: value.flatten().tolist() for name, value in kept.items()}


def test_a_roll_back_gives_the_best_checkpoint_s_weights_optimiser_and_critic_and_half_the_rate(
    tmp_path: Path,
):
    template = RoleTokenTemplate(train_tokenizer(["a few words"], 300))
    made = parts()
    kept = {}
    for update, score in ((2, 0.9), (4, 0.5)):
        taught(made, 2)
        kept[update] = numbers(made)
        state = {"update": update, "validation": [score, 0.0]}
        save_checkpoint(tmp_path / f"step-{update}", made.learner, template, state, made.critic)
    taught(made, 1)
    changes, restored = act({"roll_back": "fell"}, 5, 0.004, tmp_path, made)
    assert restored == tmp_path / "step-2"
    assert [(c.setting, c.before, c.after, c.reason) for c in changes] == [
        ("weights of update", 5.0, 2.0, "fell"),
        ("learning rate", 0.004, 0.002, "fell"),
    ]
    assert made.controls.rate_scale == 0.5
    assert numbers(made) == kept[2]
    taught(made, 2)  # the optimisers' moments are those of step 2 as well
    assert numbers(made) == kept[4]


def test_before_the_first_checkpoint_only_the_rate_is_halved(tmp_path: Path):
    made = parts()
    before = numbers(made)
    changes, restored = act({"roll_back": "fell"}, 1, 0.004, tmp_path, made)
    assert restored is None
    assert [change.setting for change in changes] == ["learning rate"]
    assert numbers(made) == before


def test_two_reasons_to_be_slower_halve_the_rate_once_and_entropy_is_apart(tmp_path: Path):
    made = parts()
    due = {"lower_rate": "spike", "roll_back": "fell", "raise_entropy": "flat"}
    changes, _ = act(due, 1, 0.004, tmp_path, made)
    assert [change.setting for change in changes] == ["weight of the entropy", "learning rate"]
    assert (made.controls.rate_scale, made.controls.entropy_weight) == (0.5, 0.01)


def alarm(detector: str, update: int) -> Alarm:
    return Alarm(detector, "rl", update, "s", f"seen at {update}", "c", "r")


def test_a_guard_acts_when_its_detector_begins_and_then_waits_whatever_it_finds():
    guards = Guards({"fell_back": "roll_back", "looping": "warn", "mismatch": "pause"})
    found = {*range(3, 12), 13, 15, 17}
    acted = []
    for update in range(1, 20):
        alarms = [alarm("fell_back", update), alarm("looping", update)] if update in found else []
        due = guards.choose(update, alarms)
        assert due in ({}, {"roll_back": f"fell_back: seen at {update}"})
        acted += [update] * bool(due)
    assert acted == [3, 9, 15]
    assert guards.may_roll_back
    assert guards.mends("mismatch")
    assert not guards.mends("looping")


@pytest.mark.parametrize("stopped", range(1, 15))
def test_a_resumed_guard_acts_like_one_that_was_never_stopped(stopped: int):
    def acted(guards: Guards, updates: range) -> list[int]:
        found = {*range(3, 12), 13}
        return [n for n in updates if guards.choose(n, [alarm("fell_back", n)] if n in found else [])]

    first, second = (Guards({"fell_back": "lower_rate"}) for _ in range(2))
    before = acted(first, range(1, stopped))
    second.load(first.state())
    assert before + acted(second, range(stopped, 15)) == [3, 9]


def test_a_mistyped_detector_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean 'fell_back'"):
        Guards({"fallback": "pause"})
