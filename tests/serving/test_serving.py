"""The server as programs see it, and a program that trains its policy through it."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from model_servers import served
from palestra.errors import ConfigError
from palestra.pipeline import Reporter
from palestra.pipeline.learning import final_stage
from palestra.pipeline.load import check_config
from palestra.pipeline.workshop import Workshop
from palestra.policy.model_server import ModelServer, ServerSettings
from palestra.policy.models import load_template
from palestra.policy.nano import NANO_FOLDER
from palestra.serving import bind
from palestra.store import RunFolder
from palestra.training import checkpoints
from palestra.types import Message, ToolSpec
from small_models import write_llama, write_nano

ASKED = [{"role": "user", "content": "left or right?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "turn",
        "description": "Which way.",
        "parameters": {"type": "object", "properties": {"way": {"type": "string"}}, "required": ["way"]},
    },
}
TOLD = {"messages": ASKED, "tools": [TOOL], "tool_choice": "none"}
SETTINGS = (
    "rl.updates=3",
    "rl.tasks_per_update=2",
    "rl.group_size=3",
    "rl.validate_every=1",
    "rl.learning_rate=0.002",
    "policy.threads=1",
    "policy.action_tokens=6",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_nano(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def address(folder, tmp_path_factory):
    with served(folder, folder=tmp_path_factory.mktemp("server")) as (url, _):
        yield url


def post(url: str, body: object, **headers: str) -> dict:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        return json.loads(answer.read())


def refusal(url: str, body: object) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(url, body)
    assert caught.value.code == 400
    return json.loads(caught.value.read())["error"]["message"]


def test_a_chat_client_gets_an_answer_in_its_form(address):
    answer = post(f"{address}/chat/completions", {"messages": ASKED, "max_tokens": 5, "logprobs": True})
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] == len(choice["logprobs"]["content"]) <= 5
    parts = [{"role": "user", "content": [{"type": "text", "text": "left or right?"}]}]
    same = [
        post(f"{address}/chat/completions", {"messages": each, "seed": 3})["choices"][0]["message"]
        for each in (ASKED, parts)
    ]
    assert same[0] == same[1]


def test_a_client_that_streams_gets_the_answer_as_one_event(address):
    body = {"messages": ASKED, "stream": True, "seed": 3}
    request = urllib.request.Request(f"{address}/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line]
    assert lines[1] == "data: [DONE]"
    whole = post(f"{address}/chat/completions", {"messages": ASKED, "seed": 3})["choices"][0]["message"]
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["delta"] == whole


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat/completions", {"messages": ASKED, "top_p": 0.9}, "top_p=0.9 is not supported"),
        ("chat/completions", {"messages": ASKED, "n": 2}, "n=2 is not supported"),
        ("chat/completions", {"messages": ASKED, "tools": [TOOL]}, "send tools with tool_choice='none'"),
        ("chat/completions", {**TOLD, "tools": [{}]}, "tools are a list of"),
        ("chat/completions", {**TOLD, "tools": [{"function": {"name": 1}}]}, "tools are a list of"),
        ("chat/completions", {**TOLD, "tools": 3}, "tools are a list of"),
        ("chat/completions", TOLD, "declares no tools"),
        ("completions", {"prompt": [5], "tools": [TOOL]}, "tools are declared in a chat"),
        ("chat/completions", {"messages": []}, "one that is to be answered"),
        ("chat/completions", {"messages": [{"role": "judge", "content": "x"}]}, "roles: system"),
        ("chat/completions", {"messages": ASKED, "temperature": "hot"}, "temperature is a number"),
        ("chat/completions", {"messages": ASKED, "temperature": -1}, "temperature must be 0"),
        ("chat/completions", {"messages": ASKED, "max_tokens": 0.5}, "whole numbers"),
        ("chat/completions", [1], "no JSON object"),
        ("chat/completions", b"{", "no JSON"),
        ("chat/completions", {"messages": ASKED, "model": "gpt"}, "no model 'gpt' here"),
        ("chat/completions", {"messages": ASKED, "ignore_eos": True}, "ignore_eos=True is not supported"),
        ("chat/completions", {"messages": ASKED, "temperature": 1e-40}, "0.01 or more"),
        ("chat/completions", b"[" * 100_000, "no JSON"),
        ("completions", {"prompt": [1_000_000]}, "token ids are from 0"),
        ("completions", {"prompt": [5], "stop_token_ids": 5}, "not with 5"),
        ("completions", {"prompt": "left"}, "a prompt of token ids"),
        ("completions", {"prompt": [5], "stop_token_ids": [77]}, "not with [77]"),
        ("completions", {"prompt": [5] * 4000}, "the prompt has 4000 tokens"),
        ("episodes/none/reward", {"reward": 1}, "no episode 'none' is being played"),
        ("episodes/none/reward", {"reward": "good"}, "a number"),
        ("episodes/none/reward", {"reward": 1e308}, "from -1e+06 to 1e+06"),
        ("episodes/none/reward", {"reward": 10**400}, "a number"),
        ("episodes/none/reward", {"reward": 1, "group": {}}, "a group is text"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(address, path, body, message):
    assert message in refusal(f"{address}/{path}", body)


def test_tools_of_a_chat_are_declared_as_the_model_s_template_declares_them(tmp_path):
    model = write_llama(tmp_path, declares=True)
    messages = [{"role": "system", "content": "Turn."}, *ASKED]
    known = ToolSpec(*(TOOL["function"][key] for key in ("name", "description", "parameters")))
    prompt = load_template(model).render(
        [Message("system", "Turn.", (known,)), Message("user", "left or right?")]
    )
    with served(model, folder=tmp_path) as (url, _):
        body = {"max_tokens": 5, "temperature": 0}
        said = post(f"{url}/chat/completions", {**TOLD, **body, "messages": messages})
        same = post(f"{url}/completions", {**body, "prompt": prompt})
    assert said["usage"]["prompt_tokens"] == len(prompt)
    assert said["choices"][0]["message"]["content"] == same["choices"][0]["text"]


def test_weights_of_nowhere_are_refused_and_the_server_goes_on(address):
    before = post(f"{address}/completions", {"prompt": [5, 6], "temperature": 0})
    assert "cannot be loaded" in refusal(address.replace("/v1", "/weights"), {"path": "/nowhere"})
    assert "another model's" in refusal(address.replace("/v1", "/weights"), {"path": str(NANO_FOLDER)})
    after = post(f"{address}/completions", {"prompt": [5, 6], "temperature": 0})
    assert before["choices"] == after["choices"]
    assert post(f"{address}/chat/completions", {"messages": ASKED})["choices"]


def test_a_request_that_would_fill_the_memory_is_refused_and_the_server_lives(address):
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(f"{address}/chat/completions", b'{"messages": "' + b"a" * (17 * 2**20) + b'"}')
    assert caught.value.code == 413
    assert post(f"{address}/chat/completions", {"messages": ASKED})["choices"]


def test_a_request_without_an_end_is_refused_and_the_server_lives(address):
    host = urllib.parse.urlsplit(address).netloc
    connection = http.client.HTTPConnection(host, timeout=60)
    sent = 0

    def flood():
        nonlocal sent
        while sent < 2**30:
            sent += 2**16
            yield b" " * 2**16

    with contextlib.suppress(OSError):  # it hangs up
        connection.request("POST", "/v1/chat/completions", flood())
        assert connection.getresponse().status == 413
    assert sent < 2**27
    assert post(f"{address}/chat/completions", {"messages": ASKED})["choices"]


def test_a_page_in_a_browser_cannot_use_a_server_without_a_key(address):
    for path, body in (
        ("/v1/episodes/a/reward", {"reward": 1}),
        ("/weights", {"path": "x"}),
        ("/v1/chat/completions", {"messages": ASKED}),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(address.removesuffix("/v1") + path, body, Origin="https://example.org")
        assert caught.value.code == 403
        assert "access-control-allow-origin" not in caught.value.headers


def test_no_file_is_served(address, folder):
    root = address.removesuffix("/v1")
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", f"/v1/models/..%2f..{folder}/config.json"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(root + path, timeout=60)
        assert caught.value.code == 404


def test_an_address_that_others_reach_needs_a_key_and_then_asks_for_it(folder, tmp_path, monkeypatch):
    command = [sys.executable, "-m", "palestra.cli", "serve-model", str(folder), "--port", "0"]
    done = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "can be reached by others" in done.stderr
    monkeypatch.setenv("A_KEY", "secret")
    with served(folder, "--key-variable", "A_KEY", folder=tmp_path) as (url, _):
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(f"{url}/chat/completions", {"messages": ASKED})
        assert caught.value.code == 401
        assert post(f"{url}/chat/completions", {"messages": ASKED}, Authorization="Bearer secret")["choices"]
        server = ModelServer(ServerSettings(url, key_variable="A_KEY"))
        assert server.owner == "palestra"
        with pytest.raises(ConfigError, match="wants another key"):
            ModelServer(ServerSettings(url))


def test_a_port_is_taken_once_and_zero_is_a_free_one():
    with bind(("127.0.0.1", 0), None) as one, bind(("127.0.0.1", 0), None) as other:
        port = one.getsockname()[1]
        assert port != other.getsockname()[1]
        with pytest.raises(ConfigError, match="choose another port, or 0 for a free one"):
            bind(("127.0.0.1", port), None)


def test_a_request_without_a_seed_is_sampled_anew_and_one_with_a_seed_the_same(address):
    def said(**settings):
        body = {"messages": ASKED, "max_tokens": 12, "temperature": 1.0, **settings}
        return post(f"{address}/chat/completions", body)["choices"][0]["message"]["content"]

    assert len({said() for _ in range(4)}) > 1
    assert len({said(seed=7) for _ in range(4)}) == 1


def program(url: str, stop: threading.Event, count: int = 6) -> None:
    """An agent of two turns that is rewarded for short answers, playing until the server is gone."""

    def play(worker: int) -> None:
        number = 0
        while not stop.is_set():
            group = f"task-{number % 4}"
            episode, messages = f"{worker}-{number}", list(ASKED)
            number += 1
            try:
                for _ in range(2):
                    headers = {"X-Episode-Id": episode, "X-Group-Id": group}
                    answer = post(f"{url}/chat/completions", {"messages": messages}, **headers)
                    messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
                size = len(messages[1]["content"])
                post(f"{url}/episodes/{episode}/reward", {"reward": -size / 10, "success": size < 5})
            except (OSError, ValueError):
                return

    threads = [threading.Thread(target=play, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_program(url: str, process) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=program, args=(url, stop))
    thread.start()
    try:
        assert process.wait(timeout=120) == 0
    finally:
        stop.set()
        thread.join()


def test_a_program_of_its_own_trains_the_policy_it_talks_to(folder, tmp_path):
    out = tmp_path / "run"
    changes = [part for change in SETTINGS for part in ("--set", change)]
    with served(folder, "--learn", "--out", out, *changes, folder=tmp_path) as (url, process):
        run_program(url, process)
    run = RunFolder.open(out)
    rows = [row for row in run.read_metrics()[0] if row["stage"] == "rl"]
    assert [row["update"] for row in rows] == [1, 2, 3]
    assert sum("tokens/trained" in row for row in rows) >= 2, "hardly an update changed the weights"
    for update in (1, 2, 3):
        groups = list(run.read_groups("rl", f"update-{update}"))
        assert [len(group.trajectories) for group in groups] == [3, 3]
        played = [t for group in groups for t in group.trajectories]
        assert {t.policy_version for t in played} == {update - 1}
        assert all(len(t.turns) == 2 and not any(turn.prompt_ids for turn in t.turns) for t in played)
        assert all(t.reward == -len(t.turns[0].action) / 10 for t in played)
    assert run.stage_result("rl") == {"updates": 3}
    workshop = Workshop(run, check_config(run.resolved()), Reporter())
    assert final_stage(workshop) == "rl"
    assert (out / "report.html").exists()


def test_a_server_that_was_killed_goes_on_with_its_learning(folder, tmp_path):
    out = tmp_path / "run"
    changes = [part for change in SETTINGS for part in ("--set", change)]
    with served(folder, "--learn", "--out", out, *changes, folder=tmp_path) as (url, process):
        stop = threading.Event()
        thread = threading.Thread(target=program, args=(url, stop))
        thread.start()
        while not checkpoints(out / "checkpoints" / "rl"):
            assert process.poll() is None
            stop.wait(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        stop.set()
        thread.join()
    with served(out, "--resume", folder=tmp_path) as (url, process):
        run_program(url, process)
    rows = [row["update"] for row in RunFolder.open(out).read_metrics()[0] if row["stage"] == "rl"]
    assert rows == [1, 2, 3]


@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "while it is used"])
def test_an_interrupted_server_says_how_to_go_on(folder, tmp_path, busy):
    out = tmp_path / "run"
    changes = [part for change in (*SETTINGS, "rl.updates=500") for part in ("--set", change)]
    with served(folder, "--learn", "--out", out, *changes, folder=tmp_path) as (url, process):
        stop = threading.Event()
        thread = threading.Thread(target=program, args=(url, stop))
        if busy:
            thread.start()
            while not checkpoints(out / "checkpoints" / "rl"):
                assert process.poll() is None
                stop.wait(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        stop.set()
        if busy:
            thread.join()
    assert (
        f"Interrupted. Go on with: palestra serve-model {out} --resume"
        in (tmp_path / "server.log").read_text()
    )
