"""What the audit finds in builtin worlds and in broken ones, and how long it takes: ``docs/evidence/audit.md``.

    python bench/audit.py
    python bench/audit.py --quick     # two worlds, writes no page

It ends with one line of JSON: episodes to the exploit by the bandit (ours) and at random (peer).
"""

from __future__ import annotations

import argparse
import json
import platform
from functools import partial
from pathlib import Path
from statistics import mean

from palestra.audit import Audit, Subject, audit, examples, honest_progress, search
from palestra.audit.run import solve_all
from palestra.envs import make_env
from palestra.rewards import Rubric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "audit.md"
SOUND = ("orders", "meeting_room", "alerts", "code_repair", "research_report")
BROKEN = ("PaidRepetition", "GuessableVerdict", "TellingErrors", "SeedIgnored", "Unsolvable")
SEARCHES = 20


def audited(name: str) -> Audit:
    world = f"palestra.audit.examples:{name}" if name in BROKEN else name
    return audit(partial(make_env, world), name, elsewhere=(world, {}))


def episodes_to_exploit(count: int, *, by_bandit: bool) -> float:
    """Mean over ``count`` searches in the world that pays for repetition, with twice the budget at most."""
    subject = Subject(examples.PaidRepetition, Rubric(), tasks=5, max_turns=12)
    bar = honest_progress(subject, solve_all(subject)) - 0.05
    return mean(
        search(subject, subject.starts[n % 5], bar, budget=800, seed=n, by_bandit=by_bandit).episodes
        for n in range(count)
    )


def page(results: list[Audit], ours: float, random: float) -> str:
    rows = "\n".join(
        f"| `{each.world}` | {'; '.join(f'{f.check}: {f.symptom}' for f in each.findings) or 'nothing'} "
        f"| {each.seconds:.1f} |"
        for each in results
    )
    return f"""# Evidence: the audit

Command: `python bench/audit.py`, on {platform.machine()} with Python {platform.python_version()}; seconds are of a machine that was busy otherwise.

| world | found | seconds |
|---|---|---|
{rows}

The search for exploits took {ours:.0f} episodes on average to find what `PaidRepetition` pays for, over {SEARCHES} searches; drawing moves at random
took {random:.0f} (at most 800 each).
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    names = ("orders", "PaidRepetition") if quick else (*SOUND, "research_report_leaky", *BROKEN)
    results = []
    for name in names:
        results.append(audited(name))
        print(f"{name}: {len(results[-1].findings)} findings, {results[-1].seconds:.1f} s", flush=True)
    count = 3 if quick else SEARCHES
    ours, random = (episodes_to_exploit(count, by_bandit=by_bandit) for by_bandit in (True, False))
    if not quick:
        PAGE.write_text(page(results, ours, random), encoding="utf-8")
    print(json.dumps({"ours": ours, "peer": random}))


if __name__ == "__main__":
    main()
