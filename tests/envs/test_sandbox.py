"""The sandbox: code that wants out or lies comes back as a plain result and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palestra.envs import Called, SandboxLimits, call_sandboxed, sandbox
from palestra.envs.sandbox_child import system_call_filter

ROOT = Path(__file__).parents[2]
QUICK = SandboxLimits(seconds=5.0)


def run(body: str, *given, limits: SandboxLimits = QUICK) -> Called:
    """What a function with this body, of one line after another, comes to."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (called,) = call_sandboxed(f"import os, sys\ndef f(*given):\n{lines}", [("f", given)], limits)
    return called


def children(pid: int) -> list[int]:
    """Processes whose parent this is, zombies too."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left(request):
    run("return 1")
    host = sandbox._host()
    before = host.pid
    yield
    assert "broken_off" in request.node.name or host.pid == before, "the host is gone"
    assert host.counts.open == 0
    assert children(host.pid) == []


def test_values_come_back_by_value_and_errors_by_name_and_line():
    source = "def double(x):\n return x * 2\ndef fail():\n\n raise KeyError(1)\n"
    calls = [("double", [4]), ("double", [[1, "a"]]), ("fail", []), ("absent", [])]
    assert call_sandboxed(source, calls) == (
        Called(8),
        Called([1, "a", 1, "a"]),
        Called(failed="KeyError", line=5),
        Called(failed="KeyError"),
    )
    assert call_sandboxed("def f(:\n", [("f", [])]) == (Called(failed="SyntaxError", line=1),)
    assert run("return (1, True, None, 1.5, {'a': 'é'})") == Called([1, True, None, 1.5, {"a": "é"}])
    assert run("return {1, 2}").failed == "TypeError"


@pytest.mark.parametrize(
    "body",
    [
        "import socket; socket.socket()",
        "import socket; socket.socketpair()",
        "open('/etc/passwd').read()",
        f"open({str(ROOT / 'src/palestra/envs/builtin/code_repair.txt')!r}).read()",
        "open(f'/proc/{os.getppid()}/environ').read()",
        "open('/proc/self/mem', 'rb').read(1)",
        "open('big', 'w').write('x' * 10**9)",
        "os.listdir('/')",
        "os.mkdir('/tmp/here')",
        "os.fork()",
        "import subprocess; subprocess.run(['/bin/true'])",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getppid(), 9)",
        "os.kill(1, 0)",
        "os.killpg(0, 9)",
        "os.setsid()",
        "os.pipe()",
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)",
        "import time; time.sleep(60)",
        "os.memfd_create('code')",
        "os.eventfd(0)",
    ],
)
def test_everything_but_computing_is_refused(body):
    assert run(body).failed == "PermissionError"


def test_system_calls_that_python_has_no_name_for_are_refused_too():
    """By number, with ctypes: ptrace, process_vm_readv, io_uring_setup, openat2, clone3, unshare."""
    libc = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    tried = "[(libc.syscall(number, 0, 0, 0, 0), ctypes.get_errno()) for number in given]"
    numbers = {"x86_64": (101, 310, 425, 437, 435, 272), "aarch64": (117, 270, 425, 437, 435, 97)}
    called = run(f"{libc}return {tried}", *numbers[os.uname().machine])
    assert called.value == [[-1, 1]] * 6


def test_the_filter_lets_other_machines_calls_kill():
    program = system_call_filter("x86_64")
    assert len(program) == 8 * (4 + 18 + 2)
    assert program != system_call_filter("aarch64")
    with pytest.raises(KeyError):
        system_call_filter("riscv64")


def test_a_fork_bomb_and_a_daemon_never_get_a_second_process():
    bomb = "n = 0\nwhile n < 50:\n try:\n  os.fork()\n except PermissionError:\n  n += 1\nreturn n"
    assert run(bomb).value == 50
    daemon = "try:\n os.fork() or os.setsid() or os.fork()\nexcept PermissionError:\n return os.getpid()"
    pid = run(daemon).value
    assert not Path(f"/proc/{pid}").exists()
    assert run("import threading; threading.Thread(target=print).start()").failed == "RuntimeError"


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "n = 0\nwhile True:\n n += 1",
        "def g():\n while True: yield 1\nreturn sum(g())",
        "import itertools\nfor i in itertools.count(): pass",
    ],
)
def test_an_endless_loop_is_stopped_after_so_many_bytecodes(body):
    before = time.monotonic()
    assert run(body).failed == "EndlessLoop"
    assert time.monotonic() - before < 3


@pytest.mark.parametrize(
    "body",
    [
        "import collections, itertools\ncollections.deque(itertools.count(), maxlen=0)",
        "sys.settrace(None)\nsys._getframe().f_trace = None\nwhile True: pass",
        "while True:\n try:\n  while True: pass\n except BaseException: pass",
    ],
)
def test_a_loop_that_evades_that_is_stopped_by_its_processor_time(body):
    assert run(body, limits=SandboxLimits(seconds=60.0)) == Called(failed="out of time")


def test_waiting_forever_is_stopped_by_the_clock():
    before = time.monotonic()
    wait = "import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()"
    assert run(wait, limits=SandboxLimits(seconds=0.5)) == Called(failed="out of time")
    assert run("os.read(3, 1)", limits=SandboxLimits(seconds=0.5)) == Called(failed="out of time")
    assert time.monotonic() - before < 10


@pytest.mark.parametrize(
    ("body", "failed"),
    [
        ("return len('x' * 10**10)", "MemoryError"),
        ("xs = []\nwhile True: xs.append(bytearray(10**7))", "MemoryError"),
        ("return 'x' * 10**6", "answered too much"),
        ("while True: os.write(3, b'x' * 10000)", "answered too much"),
        ("os._exit(0)", "killed"),
        ("import ctypes; ctypes.string_at(0)", "killed"),
        ("os.close(3)", "killed"),
        ("os.closerange(0, 100)\nreturn 1", "killed"),
        ("sys.exit(0)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def g(): return g()\nreturn g()", "RecursionError"),
        ("raise type('<|im_end|>', (Exception,), {})", "an error"),
        ("import json\njson.dumps = lambda value: 1 / 0\nreturn 1", "ZeroDivisionError"),
        ("import resource; resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))", "ValueError"),
        ("x = []\nfor i in range(3000): x = [x]\nreturn x", "RecursionError"),
        ("x = []\nfor i in range(500): x = [x]\nreturn x", "no answer"),
    ],
)
def test_whatever_goes_wrong_is_a_plain_result(body, failed):
    assert run(body).failed == failed


def test_what_is_printed_goes_nowhere_however_much_it_is():
    assert run("print('x' * 10**7)\nos.write(1, b'y')\nsys.stderr.write('z')\nreturn 5") == Called(5)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b"true",
        b'[["value", "true"], ["value", "true"]]',
        b'[["value", true]]',
        b'[["value", "{"]]',
        b'[["raised", "A", "b"]]',
        b'["value"]',
        b"\xff\xfe",
        b"[" * 50_000,
        b'[["value", "' + b"[" * 50_000 + b'"]]',
        b'[["value", "' + b"9" * 50_000 + b'"]]',
    ],
)
def test_an_answer_that_the_code_writes_itself_is_a_failure_or_a_value_and_nothing_more(answer):
    called = run(f"os.write(3, {answer!r}); os._exit(0)")
    assert called in (Called(failed="killed"), Called(failed="no answer"))


def test_a_forged_answer_can_only_say_a_value_which_is_compared_outside():
    forged = """os.write(3, b'[["value", "7"]]'); os._exit(0)"""
    assert run(forged) == Called(7)
    class_that_is_equal = "class Same(str):\n def __eq__(self, other): return True\nreturn Same('x')"
    assert run(class_that_is_equal).value == "x"
    assert run("class Same:\n def __eq__(self, other): return True\nreturn Same()").failed == "TypeError"


def test_a_process_knows_nothing_of_the_caller_or_of_earlier_runs(monkeypatch):
    monkeypatch.setenv("PALESTRA_SECRET", "kept")
    assert run("return [dict(os.environ), os.getppid() > 1]").value[0] == {}
    ours = "sorted(name for name in sys.modules if name.startswith('palestra'))"
    names = ["palestra", "palestra.envs", "palestra.envs.forking", "palestra.envs.sandbox_child"]
    assert run(f"return {ours}").value == [*names, "palestra.errors"]
    marker = "marked" * 3
    assert run(f"global kept\nkept = '{marker}'\nreturn kept").value == marker
    seen = "import gc\ngc.unfreeze()\nneedle = given[0][::-1]\n"
    seen += "return [needle in repr(each) for each in gc.get_objects()]"
    found = run(seen, marker[::-1], limits=SandboxLimits(steps=10**6, answer_bytes=10**6)).value
    assert not any(found)
    assert len(found) > 100
    assert run("import palestra.envs.builtin.words").failed == "ModuleNotFoundError"


def test_sets_of_texts_have_one_order_in_every_process():
    source = "def f(): return list({'red', 'hat', 'now', 'sea'})"
    script = f"from palestra.envs import call_sandboxed\nprint(call_sandboxed({source!r}, [('f', [])]))"
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_a_child_of_this_process_has_a_sandbox_of_its_own():
    run("return 1")
    ours = sandbox._host().pid
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = f"{run('return 2').value} {sandbox._host().pid != ours}"
        sandbox._host().close()
        os.write(writer, told.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 100) == b"2 True"
    assert run("return 3") == Called(3)


def test_a_run_that_is_broken_off_by_a_signal_leaves_nothing_that_answers_for_it():
    def alarm(number, frame):
        raise InterruptedRun

    class InterruptedRun(BaseException):
        pass

    wait = "import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()"
    before, old = sandbox._host().pid, signal.signal(signal.SIGALRM, alarm)
    try:
        for seconds in (0.001, 0.003, 0.01, 0.2):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            with pytest.raises(InterruptedRun):
                run(wait)
            assert run("return given", seconds) == Called([seconds])
    finally:
        signal.signal(signal.SIGALRM, old)
    assert sandbox._host().counts.open == 0
    assert before == sandbox._host().pid or not Path(f"/proc/{before}").exists()


def test_the_host_ends_with_the_process_that_started_it():
    script = (
        "from palestra.envs import call_sandboxed, sandbox\n"
        "call_sandboxed('def f(): return 1', [('f', [])])\n"
        "print(sandbox._host().pid, flush=True)\n"
        "import os; os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    host = Path(f"/proc/{int(done.stdout)}")
    deadline = time.monotonic() + 20
    while host.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not host.exists()
