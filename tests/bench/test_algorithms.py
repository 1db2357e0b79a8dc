"""The algorithms benchmark keeps results, and takes none that were made with other settings."""

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "bench" / "algorithms.py"
sys.path.insert(0, str(FILE.parent))  # where the script finds its neighbour
spec = importlib.util.spec_from_file_location("bench_algorithms", FILE)
algorithms = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = algorithms
spec.loader.exec_module(algorithms)


def run(algorithm: str, *settings: str) -> algorithms.Run:
    return algorithms.Run(algorithm, "orders", 0, Path("nowhere"), settings)


def test_a_stored_result_counts_only_with_the_same_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(algorithms, "RESULTS", tmp_path / "results.json")
    assert algorithms.known_results([run("grpo", "rl.updates=15")]) == {}
    algorithms.store({run("grpo", "rl.updates=15"): {"rl": 0.9}})
    algorithms.store({run("ppo", "rl.updates=15"): {"rl": 0.8}})
    plan = [
        run("grpo", "rl.updates=15"),
        run("grpo", "rl.updates=3"),
        run("ppo", "rl.updates=15"),
        run("raft"),
    ]
    known = algorithms.known_results(plan)
    assert known == {plan[0]: {"rl": 0.9}, plan[2]: {"rl": 0.8}}


def test_the_plan_has_every_algorithm_in_the_first_world_and_two_everywhere():
    plan = algorithms.plan_of(algorithms.NAMES, algorithms.WORLDS, (0, 1, 2), Path("x"), ())
    assert len(plan) == 3 * (len(algorithms.NAMES) + 2 * 2) == 54
    assert {each.algorithm for each in plan if each.world == "alerts"} == {"grpo", "ppo"}


@pytest.mark.parametrize("algorithm", ["grpo", "grpo-alone", "reinforce"])
def test_what_an_algorithm_needs_of_its_own_is_among_its_settings(algorithm):
    changes = run(algorithm, "rl.updates=15").changes
    assert ("credit.batch_share=0.5" in changes) == (algorithm == "grpo")
    assert ("rl.minibatches=1" in changes) == (algorithm == "reinforce")
