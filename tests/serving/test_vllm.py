"""Sampling on a real vLLM: the contract, weights that follow the learner's, and a run through every stage.

Run by hand after ``make vllm``: ``pytest -m slow tests/serving/test_vllm.py``. It takes some minutes.
"""

import io
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from palestra.errors import ConfigError
from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.run import create_run, run_pipeline
from palestra.policy.engine_checks import check_engine
from palestra.policy.http import HttpEngine
from palestra.policy.model_server import ModelServer, ServerSettings
from palestra.policy.models import load_policy
from palestra.policy.weight_sync import SyncedEngine
from palestra.training import Learner, imitation_loss, make_segments
from palestra.types import Message, Segment
from small_models import write_llama

ROOT = Path(__file__).parents[2]
WORLD = ROOT / "tests" / "pipeline" / "echo_world.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".vllm" / "bin" / "python").exists(), reason="make vllm makes one"),
]
CONFIG = """
world: {{name: "{world}:EchoWorld"}}
policy: {{model: "{model}", action_tokens: 40, threads: 1, server: {{url: "{url}"}}}}
collect: {{tasks: 40, demonstrations: 40}}
sft: {{epochs: 12, rows_per_update: 8, optimizer: adamw, learning_rate: 0.003}}
gate: {{tasks: 2, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 3, tasks_per_update: 6, group_size: 4, optimizer: adamw, temperature: 0.8,
  validation_tasks: 2}}
rollout: {{max_turns: 4, max_invalid: 9, max_repeats: 9}}
mine: {{rounds: 0}}
evaluation: {{tasks: 2, sampled: false}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"), hidden=256, heads=4)


@pytest.fixture(scope="module")
def url(folder, tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "log"
    command = ["make", "-C", str(ROOT), "vllm-server", f"MODEL={folder}", f"PORT={port}"]
    with open(log, "w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 480
    try:
        while True:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                if httpx2.get(f"{address}/health").is_success:
                    break
            except httpx2.TransportError:
                time.sleep(1)
        yield f"{address}/v1"
    finally:
        os.killpg(server.pid, signal.SIGKILL)


def test_it_keeps_the_contract_of_an_engine_but_for_seeds(folder, url):
    template = load_policy(folder)[1]
    engine = HttpEngine(ModelServer(ServerSettings(url)), template.end_id)
    assert not engine.reproducible
    prompt = template.render([Message("user", "number 12, word blue")])
    check_engine(engine, prompt, template.end_id, reproducible=False)


def test_it_follows_the_weights_that_are_learned_and_a_stale_one_is_found_out(folder, url):
    model, template = load_policy(folder)
    server = ModelServer(ServerSettings(url))
    engine = SyncedEngine(server, model, template, temperature=0.7, version=0)
    row = Segment("t", (7, 8, 9, 1), (False, True, True, True), (0.0,) * 4, (0.0, 1.0, 1.0, 1.0))
    learner = Learner(model)
    for version in (1, 2):
        for _ in range(3):
            learner.update([row], imitation_loss, 0.003)
        engine.weights_changed(version)
    for _ in range(5):
        learner.update([row], imitation_loss, 0.01)
    with pytest.raises(ConfigError, match="samples from another distribution"):
        engine._compare()
    engine.weights_changed(3)


def test_a_run_goes_through_every_stage_on_it(folder, url, tmp_path):
    text = CONFIG.format(world=WORLD, model=folder, url=url)
    run = create_run(tmp_path / "run", text, parse_config(text), "test")
    run_pipeline(run, parse_config(text), Reporter(Console(file=io.StringIO())))
    assert run.stage_result("evaluate") is not None
    rows = [row for row in run.read_metrics()[0] if row["stage"] == "rl"]
    mismatch = [row["policy/kl_mismatch"] for row in rows if "policy/kl_mismatch" in row]
    assert mismatch
    assert max(mismatch) < 1e-4
    played = [t for group in run.read_groups("rl") for t in group.trajectories]
    assert all(make_segments(t, [0.0] * len(t.turns)) for t in played)
