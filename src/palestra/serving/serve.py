"""Runs the server, and the learner beside it if there is one, until either ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path

import uvicorn
from safetensors import SafetensorError
from safetensors.torch import load_file

from palestra.errors import ConfigError
from palestra.pipeline import Reporter
from palestra.pipeline.model_parts import LoadedPolicy
from palestra.serving.app import make_app
from palestra.serving.desk import Desk, Limits
from palestra.serving.learning import learn
from palestra.store import RunFolder

_OWN = ("127.0.0.1", "localhost", "::1")


def bind(address: tuple[str, int], key: str | None) -> socket.socket:
    """A listening socket at host and port; 0 takes a free port.

    Raises:
        ConfigError: the address is taken, or open to others without a key.
    """
    host, port = address
    if key is None and host not in _OWN:
        raise ConfigError(
            f"{host} can be reached by others, who could train your policy: name the environment variable "
            "that holds a key with --key-variable, or listen on 127.0.0.1"
        )
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen()  # a port that nobody listens at yet could be bound twice
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"{host}:{port} cannot be used ({error.strerror}): choose another port, or 0 for a free one"
        ) from error
    return sock


def serve(
    loaded: LoadedPolicy,
    name: str,
    sock: socket.socket,
    say: Callable[[str], None],
    learning: tuple[RunFolder, Reporter] | None = None,
    key: str | None = None,
) -> None:
    """Serve a policy until interrupted, or until what learns from it is done.

    Args:
        loaded: the policy; one for learning if there is ``learning``.
        name: what clients call it.
        sock: from ``bind``.
        say: is told where the server is once it answers, and what it waits for at the end.
        learning: the run folder and where to report to; None to serve only.
        key: what requests must carry; None for none.

    Raises:
        KeyboardInterrupt: it was interrupted; an update that was being learned has been finished.
        GateFailed, TrainingPaused: the learner stopped.
    """
    asyncio.run(_Service(loaded, name, say, learning, key).run(sock))


class _Service:
    """The server, and the learner in a thread beside it."""

    def __init__(
        self,
        loaded: LoadedPolicy,
        name: str,
        say: Callable[[str], None],
        learning: tuple[RunFolder, Reporter] | None,
        key: str | None,
    ) -> None:
        config = loaded.config
        self._loaded, self._name, self._say, self._learning = loaded, name, say, learning
        limits = Limits(
            config.policy.context_tokens,
            config.policy.action_tokens,
            config.rl.temperature if learning else None,
        )
        self._desk = Desk(
            loaded.engine,
            loaded.template,
            limits,
            group_size=config.rl.group_size if learning else 1,
            max_lag=config.rl.max_policy_lag,
            captures=learning is not None,
        )
        load = None if learning else lambda path: _load(loaded, Path(path))
        app = make_app(self._desk, name, load, key)
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        )
        self._failure: BaseException | None = None
        self._finished = False

    async def run(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        serving = loop.create_task(self._serve(sock))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.01)
        self._say_where(sock)
        thread = threading.Thread(target=self._learn, args=(loop,), daemon=True)
        if self._learning:
            await self._desk.hold()  # until the learner asks for episodes, under the version it goes on from
            thread.start()
        with suppress(asyncio.CancelledError):  # as asyncio tells of an interrupt
            await serving
        await self._desk.close()
        if thread.is_alive():
            self._say("Finishing the update; Ctrl-C again ends at once.")
            await self._joined(thread, loop)
        if self._failure:
            raise self._failure
        if not self._finished:
            raise KeyboardInterrupt

    async def _serve(self, sock: socket.socket) -> None:
        with suppress(KeyboardInterrupt):  # which uvicorn raises again behind its end
            await self._server.serve(sockets=[sock])

    async def _joined(self, thread: threading.Thread, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_signal_handler(signal.SIGINT, os._exit, 130)
        while thread.is_alive():
            await asyncio.sleep(0.05)

    def _learn(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._learning is not None
        run, reporter = self._learning
        try:
            learn(run, self._loaded, self._desk, loop, reporter)
            self._finished = True
        except CancelledError:
            pass  # the server has ended
        except BaseException as error:
            self._failure = error
        asyncio.run_coroutine_threadsafe(self._end(), loop)

    async def _end(self) -> None:
        await self._desk.close()
        self._server.should_exit = True

    def _say_where(self, sock: socket.socket) -> None:
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        version = self._desk.version
        self._say(
            f"Serving {self._name} at http://{shown}:{port}/v1 (policy version {version}). Stop with Ctrl-C."
        )


def _load(loaded: LoadedPolicy, folder: Path) -> None:
    """Put the weights of a folder into the model, all or none.

    Raises:
        ConfigError: they are not there, or another model's.
    """
    try:
        weights = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"the weights in {folder} cannot be loaded: {error}") from error
    own = loaded.model.state_dict()
    wrong = [name for name, value in weights.items() if name not in own or own[name].shape != value.shape]
    missing = [name for name in own if name not in weights and not name.startswith("lm_head")]
    if wrong or missing:
        raise ConfigError(f"the weights in {folder} are another model's: {(wrong or missing)[:3]}")
    loaded.model.load_state_dict(weights, strict=False)
