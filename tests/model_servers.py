"""Servers for tests: palestra's own in a process of its own, and one that misbehaves as it is told."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def served(*arguments: str | Path, folder: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """``palestra serve-model`` on a free port: its address and process."""
    log = folder / "server.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "palestra.cli", "serve-model", *map(str, arguments), "--port", "0"],
            stdout=output,
            stderr=output,
            env={**os.environ, "GOMP_SPINCOUNT": "0"},
        )
    try:
        yield _address(process, log), process
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen, log: Path) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if line.startswith("Serving "):
                return line.split(" at ")[1].split(" ")[0]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"no server within 90 s: {log.read_text()}")


Reply = tuple[int, dict | str] | tuple[int, dict | str, dict[str, str]]


@contextmanager
def scripted(reply: Callable[[int, dict], Reply], owner: str = "vllm") -> Iterator[str]:
    """A server whose n-th answer (from 0) to a POST is ``reply(n, body)``: status, JSON or text, headers."""
    count, lock = [0], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            self._send(200, {"data": [{"id": "small", "owned_by": owner}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                number = count[0]
                count[0] += 1
            self._send(*reply(number, body))

        def _send(self, status, content, headers=None):
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            pause = float((headers or {}).get("x-drip", 0))
            with contextlib.suppress(OSError):  # who asked may be gone
                for byte in data if pause else ():
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(pause)
                if not pause:
                    self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def completion(ids, logprobs=None, **changes) -> dict:
    """A completions answer as vLLM gives it."""
    logprobs = [-0.5] * len(ids) if logprobs is None else logprobs
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop", **changes}
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": len(ids)}}
