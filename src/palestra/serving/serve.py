"""Runs the server, and the learner beside it if there is one, until either ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn
from safetensors.torch import load_file

from palestra.errors import ConfigError
from palestra.pipeline import Reporter
from palestra.pipeline.model_parts import LoadedPolicy
from palestra.serving.app import make_app
from palestra.serving.desk import Desk, Limits
from palestra.serving.learning import learn
from palestra.store import RunFolder

_OWN = ("127.0.0.1", "localhost", "::1")


def serve(
    loaded: LoadedPolicy,
    name: str,
    address: tuple[str, int],
    say: Callable[[str], None],
    learning: tuple[RunFolder, Reporter] | None = None,
    key: str | None = None,
) -> None:
    """Serve a policy until interrupted, or until what learns from it is done.

    Args:
        loaded: the policy; one for learning if there is ``learning``.
        name: what clients call it.
        address: host and port; 0 takes a free port.
        say: is told where the server is once it answers.
        learning: the run folder and where to report to; None to serve only.
        key: what requests must carry; None for none, on an address of this machine only.

    Raises:
        ConfigError: the address is taken, or open to others without a key.
        GateFailed, TrainingPaused: the learner stopped.
    """
    if key is None and address[0] not in _OWN:
        raise ConfigError(
            f"{address[0]} can be reached by others, who could train your policy: name the environment "
            "variable that holds a key with --key-variable, or listen on 127.0.0.1"
        )
    sock = _bind(address)
    url = f"http://{address[0]}:{sock.getsockname()[1]}/v1"
    asyncio.run(_serve(loaded, name, sock, lambda: say(url), learning, key))


async def _serve(
    loaded: LoadedPolicy,
    name: str,
    sock: socket.socket,
    ready: Callable[[], None],
    learning: tuple[RunFolder, Reporter] | None,
    key: str | None,
) -> None:
    config = loaded.config
    limits = Limits(config.policy.context_tokens, config.policy.action_tokens)
    desk = Desk(
        loaded.engine,
        loaded.template,
        limits,
        group_size=config.rl.group_size if learning else 1,
        max_lag=config.rl.max_policy_lag,
    )
    load = None if learning else lambda path: _load(loaded, Path(path))
    app = make_app(desk, name, load, key)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    )
    failure: list[BaseException] = []

    def learner() -> None:
        assert learning is not None
        run, reporter = learning
        try:
            learn(run, loaded, desk, loop, reporter)
        except asyncio.CancelledError:
            pass  # the server has ended
        except BaseException as error:
            failure.append(error)
        server.should_exit = True

    loop = asyncio.get_running_loop()
    serving = loop.create_task(server.serve(sockets=[sock]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    ready()
    if learning:
        await desk.hold()  # until the learner asks for episodes, under the version it goes on from
        threading.Thread(target=learner, daemon=True).start()
    with suppress(asyncio.CancelledError):
        await serving
    if failure:
        raise failure[0]


def _load(loaded: LoadedPolicy, folder: Path) -> None:
    """Put the weights of a folder into the model.

    Raises:
        ConfigError: they are not there, or another model's.
    """
    try:
        weights = load_file(folder / "model.safetensors")
        missing, unexpected = loaded.model.load_state_dict(weights, strict=False)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"the weights in {folder} cannot be loaded: {error}") from error
    if unexpected or any(not name.startswith("lm_head") for name in missing):
        raise ConfigError(f"the weights in {folder} are another model's: {unexpected or missing}")


def _bind(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        host, port = address
        raise ConfigError(
            f"{host}:{port} cannot be used ({error.strerror}): choose another port, or 0 for a free one"
        ) from error
    return sock
