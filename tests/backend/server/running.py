"""A server for tests: a real engine behind real sockets, in threads of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from backend.engine import Engine
from backend.server.app import create_app
from backend.server.listener import bind, url_of
from backend.server.run import Server

SETTINGS: dict[str, Any] = {
    "device": "cpu", "threads": 1, "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256,
    "num_blocks": 200,
}  # fmt: skip


class Running:
    """A server that runs, and ways to talk to it."""

    def __init__(self, engine: Engine, server: Server, listener: socket.socket, key: str | None) -> None:
        self.engine = engine
        self.server = server
        self.url = url_of(listener)
        self.key = key or "none"

    def openai(self, **options: Any) -> Any:
        """OpenAI's own client (`OpenAI`, but tests also give it what its types do not allow)."""
        given = {"base_url": f"{self.url}/v1", "api_key": self.key, "max_retries": 0, "timeout": 30.0, **options}
        return _client(tuple(given.items()))

    def http(self) -> httpx.Client:
        """A plain client."""
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, timeout=30, headers=headers, verify=False)  # nothing here is TLS

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        with self.http() as client:
            text = client.get("/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


@cache
def _client(options: tuple[tuple[str, Any], ...]) -> OpenAI:
    """Making one takes a tenth of a second: it reads all certificates."""
    return OpenAI(**dict(options))


@contextmanager
def running(model: Path | str, *, trace: Path | None = None, grace_s: float = 5.0, max_queue: int | None = 64,
            key: str | None = None, **settings: Any) -> Iterator[Running]:  # fmt: skip
    """Serve a model as long as the block runs."""
    app_settings = {name: settings.pop(name) for name in ("names", "max_body", "allow_origins") if name in settings}
    engine = Engine(model, trace=trace, max_queue=max_queue, **{**SETTINGS, **settings})
    app = create_app(engine, api_key=key, max_queue=max_queue, **app_settings)
    ready, listener = threading.Event(), bind("127.0.0.1", 0)
    server = Server(app, engine, grace_s=grace_s, ready=ready.set)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), name="server")
    thread.start()
    try:
        assert ready.wait(30), "the server did not start"
        yield Running(engine, server, listener, key)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"
        engine.close()
    if engine.failure is not None:
        raise engine.failure


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait until something holds; fails when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)
