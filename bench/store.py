"""Memory of the experience store over 10⁶ turns, written to ``docs/evidence/store.md``.

    python bench/store.py           # about 5 minutes on one free core
    python bench/store.py --quick   # 12,000 turns, under a minute, writes no page

Episodes are those of the noisy teacher in ``orders``, tokenised by the nano tokenizer, with random log-probabilities.
They are made once and played again with new log-probabilities. Every measurement runs in a process of its own.
The peer is what a framework keeps that holds episodes as text: message dicts, lists of float log-probabilities, a
dict of facts a turn and a dict of reward parts an episode; a prompt that several attempts share is held once, and
there are no token ids. The script ends with one line of JSON: bytes per kept update in the store (ours) and as text.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from palestra.envs import make_env
from palestra.policy import NoisyTeacher, ScriptedPolicy
from palestra.policy.chat import RoleTokenTemplate
from palestra.rewards import Rubric
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.store import ExperienceStore, RunFolder
from palestra.types import Message, Trajectory, TrajectoryGroup, Turn

PAGE = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "store.md"
TASKS, GROUP_SIZE = 16, 8
"""An update is 128 episodes."""
POOL = 16
"""Updates that are made by playing the world."""
KEPT_FOR_RSS = 64
"""Updates in memory where it is measured by resident memory, which is too coarse for two."""
SHARDS_ON_DISK = 50
SAMPLES = 100
"""Of resident memory on the way; each tenth is printed."""
TARGET = 0.65
FLAT = 0.05
"""Growth of resident memory from the first half to the second that still counts as flat."""
FORMS = {
    "text": "texts alone",
    "text+logprobs": "texts and log-probabilities",
    "peer": "texts, log-probabilities, facts and rewards: the peer",
    "records": "palestra's records: the peer's and token ids",
    "arrow": "an Arrow table of the same rows",
    "store": "the store: all that is in the records",
}


# --- episodes ---------------------------------------------------------------------------------------------------


def play_update(number: int, template: RoleTokenTemplate) -> list[TrajectoryGroup]:
    """An update's episodes as a token policy would have left them."""
    world = make_env("orders")
    tasks = [world.make_task(seed=number * TASKS + each) for each in range(TASKS)]
    rollout = Rollout(
        lambda: make_env("orders"), ScriptedPolicy("rl", NoisyTeacher()), Rubric(), Limits(max_turns=12)
    )
    groups = collect_groups(rollout, tasks, GROUP_SIZE, stage=f"rl/{number}", seed=number)
    return [replace(g, trajectories=tuple(spoken(t, template) for t in g.trajectories)) for g in groups]


def spoken(trajectory: Trajectory, template: RoleTokenTemplate) -> Trajectory:
    """The trajectory with the ids of its texts."""
    turns = []
    for number, turn in enumerate(trajectory.turns, start=1):
        reply = template.render([Message("tool", turn.observation)])
        turns.append(
            replace(
                turn,
                action_ids=(*template.encode(turn.action), template.end_id),
                observation_ids=tuple(reply) if number < len(trajectory.turns) else (),
            )
        )
    return replace(trajectory, turns=tuple(turns), prompt_ids=tuple(template.render(trajectory.prompt)))


def sampled(groups: list[TrajectoryGroup], update: int) -> list[TrajectoryGroup]:
    """The groups under an update's names and version, with log-probabilities of their own."""
    rng = np.random.default_rng(update)

    def sample(turn: Turn) -> Turn:
        logprobs = -rng.exponential(0.3, len(turn.action_ids)).astype(np.float32)
        return replace(turn, sampled_logprobs=tuple(logprobs.tolist()))

    def attempt(trajectory: Trajectory, name: str) -> Trajectory:
        turns = tuple(map(sample, trajectory.turns))
        return replace(trajectory, id=name, policy_version=update - 1, turns=turns)

    return [
        TrajectoryGroup(
            f"rl/{update}/{number}",
            group.task,
            tuple(attempt(t, f"rl/{update}/{number}/{n}") for n, t in enumerate(group.trajectories)),
        )
        for number, group in enumerate(groups)
    ]


def as_text(groups: list[TrajectoryGroup], form: str) -> list[dict[str, Any]]:
    """What a framework without token ids keeps of each episode."""
    shared: dict[str, str] = {}
    kept = []
    for trajectory in (each for group in groups for each in group.trajectories):
        messages = [
            {"role": m.role, "content": shared.setdefault(m.content, m.content)} for m in trajectory.prompt
        ]
        for turn in trajectory.turns:
            messages.append({"role": "assistant", "content": str(turn.action)})
            messages.append({"role": "tool", "content": turn.observation})
        episode: dict[str, Any] = {"messages": messages}
        if form != "text":
            episode["logprobs"] = [list(turn.sampled_logprobs) for turn in trajectory.turns]
        if form == "peer":
            episode["facts"] = [asdict(turn.facts) for turn in trajectory.turns]
            episode["rewards"] = [turn.reward for turn in trajectory.turns]
            episode |= {"reward": trajectory.reward, "reward_parts": dict(trajectory.reward_parts)}
        kept.append(episode)
    return kept


def make_pool(folder: Path) -> dict[str, float]:
    """Write the pool's updates in every form; what they hold, as means."""
    tokenizer = Tokenizer.from_file(str(files("palestra.policy") / "nano_weights" / "tokenizer.json"))
    template, totals = RoleTokenTemplate(tokenizer), np.zeros(4)
    for number in range(POOL):
        groups = sampled(play_update(number, template), number + 1)
        (folder / f"records-{number}").write_bytes(pickle.dumps(groups))
        for form in ("text", "text+logprobs", "peer"):
            (folder / f"{form}-{number}").write_bytes(pickle.dumps(as_text(groups, form)))
        episodes = [t for g in groups for t in g.trajectories]
        turns = [turn for t in episodes for turn in t.turns]
        ids = sum(len(turn.action_ids) for turn in turns)
        row = sum(len(turn.observation_ids) for turn in turns) + sum(len(t.prompt_ids) for t in episodes)
        totals += (len(episodes), len(turns), ids, row + ids)
    return dict(zip(("episodes", "turns", "sampled_tokens", "tokens"), (totals / POOL).tolist(), strict=True))


def load(folder: Path, form: str, number: int) -> Any:
    return pickle.loads((folder / f"{form}-{number % POOL}").read_bytes())


# --- measurements, each in a process of its own -----------------------------------------------------------------


def resident() -> int:
    """Bytes of this process in memory; Linux only."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def new_store(folder: Path, **bounds: int) -> tuple[RunFolder, ExperienceStore]:
    run = RunFolder.create(
        Path(tempfile.mkdtemp(dir=folder)) / "run", config_text="", resolved={}, command=""
    )
    return run, ExperienceStore(run, "rl", **bounds)


def keep(folder: Path, form: str, updates: int) -> Any:
    """Hold some updates in one form and nothing else."""
    if form not in ("arrow", "store"):
        return [load(folder, form, number) for number in range(updates)]
    run, store = new_store(folder, hot_updates=updates)
    for number in range(updates):
        store.add(number + 1, sampled(load(folder, "records", number), number + 1))
    return store if form == "store" else [pq.read_table(path) for path in run.trajectory_files("rl")]


def measure_form(folder: Path, form: str) -> dict[str, float]:
    """Bytes per kept update: as Python and Arrow count them for two updates, and of resident memory."""
    for _ in range(KEPT_FOR_RSS):  # imports, caches and what allocators hold back are none of the form's
        keep(folder, form, 1)
    start = resident()
    kept = keep(folder, form, KEPT_FOR_RSS)
    rss = (resident() - start) / KEPT_FOR_RSS
    del kept
    gc.collect()
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    kept = keep(folder, form, 2)
    gc.collect()
    counted = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - arrow
    del kept
    return {"counted": counted / 2, "rss": rss}


def measure_turns(folder: Path, turns: int) -> dict[str, Any]:
    """Drive the store through that many turns: resident memory on the way, times, and whether reads are exact."""
    run, store = new_store(folder, max_policy_lag=1)
    times: dict[str, list[float]] = {"add": [], "fresh": [], "read hot": [], "read cold": []}
    done, update, samples, exact, written = 0, 0, [(0, resident())], True, 0

    def timed(name: str, call: Any) -> Any:
        start = time.perf_counter()
        result = call()
        times[name].append(time.perf_counter() - start)
        return result

    while done < turns:
        update += 1
        groups = sampled(load(folder, "records", update), update)
        done += sum(len(t.turns) for g in groups for t in g.trajectories)
        timed("add", lambda: store.add(update, groups))  # noqa: B023
        written += run.trajectory_file("rl", f"update-{update}").stat().st_size
        fresh = timed("fresh", lambda: store.fresh(update - 1))  # noqa: B023
        if update % 16 == 0:
            old = update - 10
            exact &= fresh == groups == timed("read hot", lambda: store.read(update))  # noqa: B023
            exact &= timed("read cold", lambda: store.read(old)) == sampled(load(folder, "records", old), old)  # noqa: B023
        run.trajectory_file("rl", f"update-{update - SHARDS_ON_DISK}").unlink(missing_ok=True)
        del groups, fresh
        if done >= turns * len(samples) / SAMPLES:
            samples.append((done, resident()))
    return {
        "samples": samples,
        "updates": update,
        "exact": exact,
        "shard": written / update,
        "milliseconds": {name: 1e3 * median(values) for name, values in times.items() if values},
    }


def in_process(folder: Path, *arguments: object) -> Any:
    """Run a measurement in a fresh process."""
    command = [sys.executable, __file__, "--folder", str(folder), "--measure", *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# --- report -----------------------------------------------------------------------------------------------------


def growth(samples: list[tuple[int, int]]) -> float:
    """Of the second half's highest sample over the first half's, as a share."""
    values = [rss for _, rss in samples]
    half = len(values) // 2
    return max(values[half:]) / max(values[:half]) - 1


def saved(forms: dict[str, dict[str, float]], form: str) -> float:
    """How far the store is below a form, by the less favourable measure."""
    return min(1 - size / forms[form][meter] for meter, size in forms["store"].items())


def report(
    pool: dict[str, float], forms: dict[str, dict[str, float]], drive: dict[str, Any]
) -> Iterator[str]:
    """The evidence page."""
    peer, ours = forms["peer"], forms["store"]
    samples = drive["samples"]
    yield "# Evidence: the experience store\n"
    yield (
        "Command: `python bench/store.py`. An update is 128 episodes (16 tasks, 8 attempts each) of the noisy teacher in\n"
        f"`orders`, tokenised by the nano tokenizer: on average over {POOL} updates {pool['turns']:,.0f} turns, "
        f"{pool['sampled_tokens']:,.0f} sampled tokens\nand {pool['tokens']:,.0f} tokens in all. "
        "Log-probabilities are drawn at random, so no two are alike.\n"
        f"Machine: {os.cpu_count()} cores of {platform.machine()}, shared with others.\n"
    )
    yield "## Memory of a kept update\n"
    yield (
        "The peer is what a framework keeps that holds episodes as text: a dict a message, a list of float log-probabilities\n"
        "and a dict of facts a turn, a dict of reward parts an episode. In its favour, equal prompts are held once and there\n"
        "are no token ids. *Counted* is what Python's `tracemalloc` and Arrow say of two kept updates, per update. *Resident*\n"
        f"is the growth of the process by {KEPT_FOR_RSS} kept updates, after as many had come and gone, per update. Each row ran in a\n"
        "process of its own.\n"
    )
    yield "| kept as | counted, KB | resident, KB | the store is below it by (counted) | (resident) |"
    yield "|---|---|---|---|---|"
    for form, meaning in FORMS.items():
        size = forms[form]
        below = [f"{1 - ours[meter] / size[meter]:.1%}" if form != "store" else "–" for meter in size]
        yield f"| {meaning} | {size['counted'] / 1e3:,.0f} | {size['rss'] / 1e3:,.0f} | {below[0]} | {below[1]} |"
    yield (
        f"\nTarget: at least {TARGET:.0%} below the peer. By the less favourable measure it is {saved(forms, 'peer'):.1%} below the peer, and "
        f"{saved(forms, 'text'):.1%} below\ntexts alone, without a single number. "
        "Attempts at one task say much the same here, which compresses well: a\npolicy whose texts differ more saves less.\n"
    )
    yield f"## {samples[-1][0]:,} turns\n"
    yield (
        f"{drive['updates']:,} updates went through `add` and `fresh` with `max_policy_lag=1` and two hot updates; every 16th also read\n"
        "its own shard and a cold one. Resident memory of the whole process, Python and its libraries included:\n"
    )
    yield "| turns | resident, MB |"
    yield "|---|---|"
    yield from (f"| {turns:,} | {rss / 1e6:.1f} |" for turns, rss in samples[:: SAMPLES // 10])
    yield (
        f"\nOf {len(samples)} samples the highest in the second half differs by {growth(samples):+.1%} from the highest in the first.\n"
        f"As text, these turns would have taken {peer['counted'] * drive['updates'] / 1e9:.1f} GB. "
        f"All {len(range(16, drive['updates'] + 1, 16))} pairs of reads were "
        f"{'equal to what was added' if drive['exact'] else 'NOT equal to what was added'}.\n"
    )
    yield "## Times\n"
    yield "| call, for 128 episodes | median, ms |"
    yield "|---|---|"
    yield from (f"| `{name}` | {value:.0f} |" for name, value in drive["milliseconds"].items())
    yield (
        "\n`add` includes syncing the shard to the disk; `fresh` decodes two updates. A shard is "
        f"{drive['shard'] / 1e3:,.0f} KB on average.\n"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        name, value = asked.measure
        measured = (
            measure_turns(asked.folder, int(value)) if name == "turns" else measure_form(asked.folder, value)
        )
        print(json.dumps(measured))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pool = make_pool(folder)
        forms = {form: in_process(folder, "form", form) for form in FORMS}
        drive = in_process(folder, "turns", 12_000 if asked.quick else 1_000_000)
    lines = "\n".join(report(pool, forms, drive))
    print(lines)
    if not asked.quick:
        PAGE.write_text(lines, encoding="utf-8")
    ours, peer = forms["store"], forms["peer"]
    result = {
        "name": "store",
        "ratio": ours["counted"] / peer["counted"],
        "ours": ours["counted"],
        "peer": peer["counted"],
        "unit": "bytes per kept update",
        "checks": {
            "below_text": saved(forms, "peer") >= TARGET,
            "flat": growth(drive["samples"]) <= FLAT,
            "exact": drive["exact"],
        },
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
