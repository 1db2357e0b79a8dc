"""The audit finds what is broken and is silent about what is sound."""

import json
import re
from dataclasses import replace
from pathlib import Path

import holes
import pytest

from palestra.audit import (
    AuditSettings,
    Subject,
    audit,
    examples,
    honest_progress,
    search,
    write_json,
    write_page,
)
from palestra.audit import subject as subject_module
from palestra.audit.run import solve_all
from palestra.audit.subject import replay
from palestra.cli import main
from palestra.envs import make_env
from palestra.envs.builtin.research_report_leaky import LeakyResearchReport
from palestra.errors import WorldError
from palestra.rewards import Rubric

REPOSITORY = Path(__file__).parents[2]
QUICK = AuditSettings(tasks=20, episodes=200)


def audited(world, **options):
    name = f"{world.__module__}:{world.__name__}"
    elsewhere = (
        (name, {}) if world.__module__.startswith("palestra.") else (f"{holes.__file__}:{world.__name__}", {})
    )
    return audit(world, world.__name__, settings=QUICK, elsewhere=elsewhere, **options)


def found(result) -> dict[str, str]:
    return {finding.check: finding.severity for finding in result.findings}


@pytest.mark.parametrize("name", ["orders", "meeting_room", "alerts", "code_repair", "research_report"])
def test_nothing_is_found_in_a_builtin_world_and_it_takes_seconds(name):
    result = audit(lambda: make_env(name), name, elsewhere=(name, {}))
    assert result.findings == ()
    assert len(result.checks) >= 14
    assert result.oracle_reward == pytest.approx(1.45, abs=0.01)
    assert result.seconds < 60


@pytest.mark.parametrize("world", [examples._Research, holes.Post, holes.PlainGym])
def test_nothing_is_found_in_a_sound_world_of_another_kind(world):
    result = audited(world)
    assert found(result) == {}, [finding.symptom for finding in result.findings]


@pytest.mark.parametrize(
    ("world", "check"),
    [
        (examples.PaidRepetition, "do it again"),
        (examples.GuessableVerdict, "guess the answer"),
        (examples.TellingErrors, "read the error"),
        (examples.SeedIgnored, "group seed"),
        (examples.Unsolvable, "oracle"),
        (LeakyResearchReport, "do it again"),
        (LeakyResearchReport, "guess the answer"),
        (holes.AlwaysRight, "guess the answer"),
        (holes.PartOfAnswer, "say everything"),
        (holes.TalkedInto, "guess the answer"),
        (holes.SharedState, "group seed"),
        (holes.HashOrder, "other process"),
        (holes.LeftOver, "reset"),
        (holes.OneTask, "tasks"),
        (holes.FewTasks, "split"),
        (holes.TellingNumber, "prompt"),
        (holes.Raising, "raises"),
        (holes.NeverEnds, "end"),
        (holes.UnusedTool, "leave out greet"),
        (holes.Verdict, "guess the answer"),
        (holes.PartOfNothing, "say nothing"),
        (holes.TellsWhoAsksNothing, "read the error"),
        (holes.AnyChoice, "try every choice"),
        (holes.LevelIgnored, "levels"),
        (holes.FarmedGym, "do it again"),
        (holes.UnseededGym, "group seed"),
        (holes.OnlyTheOracleKnows, "oracle"),
        (holes.RestOfNumber, "prompt"),
        (holes.NearlyAlwaysTheSame, "answers"),
        (holes.SplitLetters, "text"),
        (holes.NoNumber, "raises"),
    ],
)
def test_a_hole_is_found_by_the_check_that_is_for_it(world, check):
    result = audited(world)
    assert check in found(result), [(each.check, each.symptom) for each in result.findings]


def test_a_world_that_never_answers_does_not_stop_the_audit(monkeypatch):
    monkeypatch.setattr(subject_module, "STEP_SECONDS", 0.2)
    result = audited(holes.Loops)
    (finding,) = [each for each in result.findings if each.check == "hangs"]
    assert "look" in finding.symptom
    assert "no answer after" in finding.symptom


@pytest.mark.parametrize("world", [examples.PaidRepetition, LeakyResearchReport])
def test_an_attempt_that_is_shown_comes_out_the_same_when_it_is_played_again(world, tmp_path):
    result = audited(world)
    write_json(result, tmp_path / "audit.json")
    stored = json.loads((tmp_path / "audit.json").read_text())
    (evidence,) = [each["evidence"] for each in stored["findings"] if each["check"] == "do it again"]
    subject = Subject(world, Rubric(), tasks=1, max_turns=20)
    actions = [step["action"] for step in evidence["steps"]]
    again = subject.play(subject.start(evidence["seed"]), replay(actions))
    assert again.total == pytest.approx(evidence["total"])
    assert again.success is evidence["success"] is False


def test_an_audit_is_the_same_twice():
    first, second = (audited(examples.GuessableVerdict) for _ in range(2))
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)


def test_the_page_shows_findings_and_runs_nothing(tmp_path):
    result = audited(holes.TalkedInto)
    write_page(result, tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    assert "guess the answer" in page
    assert "<script" not in page
    assert "Audit of <strong>TalkedInto</strong>" in page


def test_a_rubric_that_pays_for_the_way_is_told():
    weights = {"outcome": 0.5, "process": 1.0, "format": 0.1}
    result = audit(lambda: make_env("orders"), "orders", rubric=Rubric(weights), settings=QUICK)
    assert found(result)["parts"] == "warning"


def test_the_search_needs_fewer_episodes_than_drawing_at_random():
    """Ten searches each on two worlds that pay for repetition."""
    needed = {True: 0, False: 0}
    for world in (examples.PaidRepetition, holes.RepeatedOnly):
        subject = Subject(world, Rubric({"outcome": 1.0, "process": 1.0}), tasks=5, max_turns=12)
        bar = min(honest_progress(subject, solve_all(subject)), 0.8)
        for seed in range(10):
            for by_bandit in needed:
                result = search(subject, subject.starts[0], bar, budget=600, seed=seed, by_bandit=by_bandit)
                needed[by_bandit] += result.episodes
    print(f"episodes to the exploit: {needed[True] / 20:.0f} by bandit, {needed[False] / 20:.0f} at random")
    assert needed[True] < 0.7 * needed[False]


def test_what_cannot_be_made_cannot_be_audited():
    with pytest.raises(WorldError, match="nothing cannot be audited: making the world: ConfigError"):
        audit(lambda: make_env("nothing"), "nothing")


@pytest.mark.parametrize("source", ["init", "README"])
def test_nothing_is_found_in_the_worlds_that_newcomers_start_from(source, tmp_path):
    if source == "init":
        with pytest.raises(SystemExit):
            main(["init", "fridge", "--folder", str(tmp_path)])
        name = f"{tmp_path / 'fridge.py'}:Fridge"
    else:
        blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
        (text,) = [block for block in blocks if "class Parcels" in block]
        (tmp_path / "parcels.py").write_text(text)
        name = f"{tmp_path / 'parcels.py'}:Parcels"
    result = audit(lambda: make_env(name), name, settings=QUICK, elsewhere=(name, {}))
    assert result.findings == (), [finding.symptom for finding in result.findings]
