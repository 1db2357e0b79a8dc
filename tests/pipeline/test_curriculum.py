"""A horizon that grows: what is played, and a run interrupted around each boundary."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file

from palestra.errors import ConfigError
from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.learning_parts import check_curriculum
from palestra.pipeline.run import create_run, open_run, run_pipeline
from palestra.store import RunFolder

WORLD = Path(__file__).with_name("echo_world.py")
CONFIG = f"""
seed: 1
world: {{name: "{WORLD}:EchoWorld"}}
collect: {{tasks: 8, attempts: 1, demonstrations: 8, vary_prompts: 0}}
policy: {{action_tokens: 24, threads: 1}}
rollout: {{max_turns: 3, max_invalid: 9, max_repeats: 9}}
sft: {{epochs: 1, rows_per_update: 8, learning_rate: 0.003}}
gate: {{tasks: 2, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 5, tasks_per_update: 2, group_size: 4, validate_every: 2, validation_tasks: 2}}
curriculum: {{max_turns: [1, 2, 3], after: 2}}
"""
STAGES = ["collect", "sft", "gate", "rl"]
UNREPRODUCIBLE = ("time/", "tokens_per_second/")


class Interrupting(Reporter):
    """Stops the run right after an update was reported."""

    def __init__(self, update: int) -> None:
        super().__init__(Console(file=io.StringIO()))
        self._update = update

    def line(self, text: str) -> None:
        if text.startswith(f"  rl {self._update}/"):
            raise KeyboardInterrupt
        super().line(text)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has passed the gate."""
    config = parse_config(CONFIG)
    run = create_run(tmp_path_factory.mktemp("curriculum") / "ready", CONFIG, config, "test")
    run_pipeline(run, config, Reporter(Console(file=io.StringIO())), STAGES[:3])
    return run.path


def trained(ready: Path, path: Path, interrupted: int = 0) -> RunFolder:
    shutil.copytree(ready, path)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            run_pipeline(*open_run(path), Interrupting(interrupted), STAGES)
    run, config = open_run(path)
    run_pipeline(run, config, Reporter(Console(file=io.StringIO())), STAGES)
    return run


@pytest.fixture(scope="module")
def calm(ready: Path) -> RunFolder:
    return trained(ready, ready.with_name("calm"))


def rows(run: RunFolder) -> list[dict]:
    return [
        {name: value for name, value in row.items() if not name.startswith(UNREPRODUCIBLE)}
        for row in run.read_metrics()[0]
        if row["stage"] == "rl"
    ]


def test_episodes_are_as_long_as_the_step_allows_and_the_row_says_so(calm: RunFolder):
    limits = [row["curriculum/max_turns"] for row in rows(calm)]
    assert limits == [1, 1, 2, 2, 3]
    for update, limit in enumerate(limits, start=1):
        played = [t for g in calm.read_groups("rl", f"update-{update}") for t in g.trajectories]
        assert max(len(each.turns) for each in played) <= limit
        assert all(len(each.turns) == limit for each in played if each.stop_reason == "max_turns")


@pytest.mark.parametrize("update", [1, 2, 3, 4])
def test_a_run_interrupted_around_a_boundary_equals_one_that_was_not(
    calm: RunFolder, ready: Path, tmp_path: Path, update: int
):
    run = trained(ready, tmp_path / "run", update)
    assert rows(run) == rows(calm)
    assert run.read_alarms() == calm.read_alarms()
    for name in ("model", "optimizer"):
        last = Path("checkpoints", "rl", "step-5", f"{name}.safetensors")
        first, second = load_file(calm.path / last), load_file(run.path / last)
        assert all(first[key].equal(second[key]) for key in first)


def test_a_checkpoint_that_was_half_deleted_when_the_run_was_killed_is_deleted_when_it_goes_on(
    calm: RunFolder, tmp_path: Path
):
    shutil.copytree(calm.path, tmp_path / "run")
    (tmp_path / "run" / "stages" / "rl.json").unlink()
    half = tmp_path / "run" / "checkpoints" / "rl" / "step-1"
    half.mkdir()
    (half / "state.json").write_text('{"update": 1, "validation": []}')
    run, config = open_run(tmp_path / "run")
    run_pipeline(run, config, Reporter(Console(file=io.StringIO())), STAGES)
    kept = [sorted(path.name for path in (r.path / "checkpoints" / "rl").iterdir()) for r in (calm, run)]
    assert kept[0] == kept[1]


def test_a_level_that_the_world_has_not_is_refused_before_anything_is_spent():
    from palestra.pipeline.workshop import Workshop

    config = parse_config("world: {name: orders}\ncurriculum: {difficulty: [1, 9]}")
    with pytest.raises(ConfigError, match=r"difficulties \[1, 2, 3\], not 9"):
        Workshop(None, config, Reporter(Console(file=io.StringIO()))).preflight()


def test_levels_grow_too():
    from palestra.pipeline.workshop import Workshop

    workshop = Workshop(None, parse_config("world: {name: orders}"), Reporter(Console(file=io.StringIO())))
    tasks = [workshop.train_tasks(3, "rl:1", level) for level in (None, 1, 3)]
    assert [{task.data["difficulty"] for task in each} for each in tasks] == [{2}, {1}, {3}]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{max_turns: [4, 2]}", "must grow"),
        ("{max_turns: [4, 40]}", "goes up to 40, rollout.max_turns is 12"),
        ("{after: 2}", "has no steps"),
        ("{difficulty: [1, 2], by: truncation}", "would make tasks harder"),
    ],
)
def test_a_curriculum_that_cannot_be_climbed_is_refused(section: str, said: str):
    with pytest.raises(ConfigError, match=said):
        check_curriculum(parse_config(f"curriculum: {section}"))
