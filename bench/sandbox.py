"""What a call in the sandbox costs, against a new interpreter for each: both compute the same.

    python bench/sandbox.py

Prints wall time for each way, and processor time of the sandbox's processes, per run of ten short calls.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from palestra.envs import call_sandboxed, make_env, run_oracle, sandbox
from palestra.envs.builtin.tested_code import _called, functions

RUNS = 200
FUNCTION = functions()["gcd"]
CALLS = [(each.function, each.given) for each in FUNCTION.examples]
SCRIPT = (
    "import json, sys; space = {}; source, calls = json.load(sys.stdin); exec(source, space); "
    "print(json.dumps([space[name](*given) for name, given in calls]))"
)


def in_the_sandbox() -> list[object]:
    return [each.value for each in call_sandboxed(FUNCTION.source, CALLS)]


def in_an_interpreter() -> list[object]:
    job = json.dumps([FUNCTION.source, CALLS])
    done = subprocess.run([sys.executable, "-S", "-c", SCRIPT], input=job, capture_output=True, text=True)
    answer: list[object] = json.loads(done.stdout)
    return answer


def milliseconds(do: Callable[[], object], runs: int) -> float:
    began = time.perf_counter()
    for _ in range(runs):
        do()
    return (time.perf_counter() - began) / runs * 1000


def host_seconds() -> float:
    """Processor time of the host and of the processes it has buried."""
    fields = Path(f"/proc/{sandbox._host().pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def steps() -> tuple[float, float]:
    """Milliseconds of a reset and of a step in ``code_repair``, nothing remembered."""
    world = make_env("code_repair")
    resets, acts, count = 0.0, 0.0, 0
    for seed in range(60):
        task = world.make_task(seed)
        calls = run_oracle(world, task)
        _called.cache_clear()
        resets += milliseconds(lambda task=task: world.reset(options={"task": task}), 1)
        for call in calls:
            _called.cache_clear()
            acts += milliseconds(lambda call=call: world.step(world.action_text(call)), 1)
            count += 1
    return resets / 60, acts / count


def main() -> None:
    assert in_the_sandbox() == in_an_interpreter() == [each.wanted for each in FUNCTION.examples]
    before = host_seconds()
    sandboxed = milliseconds(in_the_sandbox, RUNS)
    processor = (host_seconds() - before) / RUNS * 1000
    print(f"sandbox: {sandboxed:.1f} ms, of them {processor:.1f} ms of processor time in its processes")
    print(f"a new interpreter: {milliseconds(in_an_interpreter, RUNS // 4):.1f} ms")
    reset, step = steps()
    print(f"code_repair, nothing remembered: reset {reset:.1f} ms, step {step:.1f} ms")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
