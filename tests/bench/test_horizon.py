"""The horizon benchmark's arithmetic, against numbers worked by hand."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "bench" / "horizon.py"
sys.path.insert(0, str(FILE.parent))  # where the script finds its neighbour
spec = importlib.util.spec_from_file_location("bench_horizon", FILE)
horizon = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = horizon
spec.loader.exec_module(horizon)


def made(*points: tuple[float, float]) -> horizon.Made:
    """Tokens and success at each validation; ten tokens an episode."""
    curve = [horizon.Point(n, tokens, tokens / 10, success) for n, (tokens, success) in enumerate(points)]
    return horizon.Made(curve, {})


def test_the_cost_is_linear_between_the_validations_around_the_first_crossing():
    run = made((0, 0.2), (100, 0.4), (300, 0.8), (400, 0.6), (500, 0.9))
    assert run.cost(0.5) == pytest.approx((150, 15))
    assert run.cost(0.8) == pytest.approx((300, 30))
    assert run.cost(0.85) == pytest.approx((400 + 100 * 25 / 30, 40 + 10 * 25 / 30))


def test_a_target_that_was_never_reached_has_no_cost_and_one_that_was_there_costs_nothing():
    run = made((0, 0.2), (100, 0.4))
    assert run.cost(0.5) is None
    assert run.cost(0.2) == (0.0, 0.0)


def test_the_average_is_the_area_under_the_curve_up_to_the_budget():
    run = made((0, 0.2), (100, 0.4), (300, 0.8))
    assert run.average(100) == pytest.approx(0.3)
    assert run.average(200) == pytest.approx((0.3 * 100 + 0.5 * 100) / 200)
    assert run.average(300) == pytest.approx((0.3 * 100 + 0.6 * 200) / 300)


def test_the_interval_is_students_with_one_degree_of_freedom_less_than_seeds():
    middle, low, high = horizon.interval([1.0, 2.0, 3.0])
    assert (middle, high - middle) == pytest.approx((2.0, 4.303 / math.sqrt(3)))
    assert middle - low == pytest.approx(high - middle)
    assert horizon.interval([1.0]) is None


def test_seeds_are_compared_with_themselves_and_only_where_both_horizons_reached_the_target():
    runs = {
        (0, "fixed"): made((0, 0.2), (100, 0.8)),
        (0, "growing"): made((0, 0.2), (50, 0.8)),
        (1, "fixed"): made((0, 0.2), (100, 0.8)),
        (1, "growing"): made((0, 0.2), (50, 0.4)),
        (2, "fixed"): made((0, 0.2), (100, 0.8)),
    }
    results = {horizon.Run(arm, seed, Path(), False): run for (seed, arm), run in runs.items()}
    assert horizon.ratios(results, 0.8, 0) == pytest.approx([math.log(0.5)])
    assert horizon.common_target(results) == 0.4


def test_the_growing_run_differs_from_the_fixed_one_in_its_curriculum_only():
    fixed, growing = (horizon.Run(arm, 3, Path(), False).settings for arm in ("fixed", "growing"))
    assert all(setting.startswith("curriculum.") for setting in growing[len(fixed) :])
    assert growing[: len(fixed)] == fixed
