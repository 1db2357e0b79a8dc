"""Intervals, pass@k and paired tests: how sure a success rate is, and whether two runs really differ.

Pure functions of numbers; ``metrics`` and ``compare`` feed them. The one surprising choice: where the data
cannot carry an answer (no episodes, fewer attempts than k) the answer is None, never 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from palestra.errors import ConfigError

_RESAMPLES = 10_000
_EXACT_FLIPS = 12


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Wilson's score interval of a success rate, as two shares in 0..1.

    It stays inside 0..1 and is honest at 0 and at 1, where the normal interval has no width. Episodes are
    held to be independent: attempt each task once for the interval to mean what it says.

    Returns:
        ``(low, high)``, or None for ``n == 0``.

    Raises:
        ConfigError: for more successes than episodes, or a confidence outside 0..1.
    """
    _require(0 <= successes <= n, f"{successes} successes of {n} episodes")
    _require(0 < confidence < 1, f"confidence must lie between 0 and 1, not {confidence}")
    if n == 0:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate, scale = successes / n, 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def bootstrap_interval(
    values: Sequence[float], seed: int, confidence: float = 0.95
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean of ``values``, in their own unit.

    Returns:
        ``(low, high)``, or None for fewer than two values: one value has no spread to resample.

    Raises:
        ConfigError: for a confidence outside 0..1.
    """
    _require(0 < confidence < 1, f"confidence must lie between 0 and 1, not {confidence}")
    if len(values) < 2:
        return None
    data, rng = np.asarray(values, dtype=float), np.random.default_rng(seed)
    rows = max(1, 1_000_000 // len(data))  # a block of resamples at a time: memory stays bounded
    means: list[float] = []
    while len(means) < _RESAMPLES:
        picks = rng.integers(0, len(data), size=(min(rows, _RESAMPLES - len(means)), len(data)))
        means.extend(data[picks].mean(axis=1).tolist())
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Chance that at least one of ``k`` attempts succeeds: ``1 - C(n-c, k) / C(n, k)``, unbiased.

    Args:
        n: attempts made at the task.
        c: how many of them succeeded.
        k: attempts allowed.

    Returns:
        A share in 0..1; None for ``n < k``, where no unbiased estimate exists.
    """
    _check_attempts(n, c, k)
    return None if n < k else 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float | None:
    """Chance that all of ``k`` attempts succeed (pass^k): ``C(c, k) / C(n, k)``, unbiased.

    Arguments and result as in ``pass_at_k``.
    """
    _check_attempts(n, c, k)
    return None if n < k else math.comb(c, k) / math.comb(n, k)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Two runs compared task by task: what the second has over the first."""

    tasks: int
    """Tasks that both runs scored."""
    unscored: int
    """Tasks left out because a run could not measure them."""
    difference: float | None
    """Mean of second minus first; None without a scored task."""
    interval: tuple[float, float] | None
    """Bootstrap interval of the difference, 95 %, resampling tasks."""
    p: float | None
    """Two-sided sign-flip test: the chance of so large a difference if the runs were equally good."""


def paired_difference(
    a: Mapping[str, float | None], b: Mapping[str, float | None], seed: int
) -> PairedDifference:
    """How much better run ``b`` is than run ``a`` on the same tasks.

    Args:
        a: a value per task id; None where the task could not be scored.
        b: the same task ids.
        seed: of the resampling.

    Raises:
        ConfigError: if the runs were not made on the same tasks.
    """
    alone = sorted(a.keys() ^ b.keys())
    _require(not alone, f"the runs share no common task list: {len(alone)} tasks such as {alone[:3]} differ")
    pairs = [(a[task], b[task]) for task in sorted(a)]
    changes = [after - before for before, after in pairs if before is not None and after is not None]
    if not changes:
        return PairedDifference(0, len(pairs), None, None, None)
    return PairedDifference(
        tasks=len(changes),
        unscored=len(pairs) - len(changes),
        difference=sum(changes) / len(changes),
        interval=bootstrap_interval(changes, seed),
        p=_sign_flip_p(changes, seed),
    )


def _sign_flip_p(changes: Sequence[float], seed: int) -> float:
    """Exact over all flips of few changes, sampled with the observed flip counted in for many."""
    moved = np.array([change for change in changes if change != 0], dtype=float)
    observed = abs(moved.sum()) - 1e-9  # equal sums must count as equal whatever the order of addition
    if len(moved) <= _EXACT_FLIPS:
        flips = np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1
        return float((np.abs((1 - 2 * flips) @ moved) >= observed).mean())
    rng, hits = np.random.default_rng(seed), 0
    for _ in range(_RESAMPLES):
        hits += int(abs((1 - 2 * rng.integers(0, 2, len(moved))) @ moved) >= observed)
    return (hits + 1) / (_RESAMPLES + 1)


def _check_attempts(n: int, c: int, k: int) -> None:
    _require(0 <= c <= n, f"{c} successes of {n} attempts")
    _require(k >= 1, f"k must be at least 1, not {k}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
