"""Servers for tests of the live view, and waiting for what they bring about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MetricsServer:
    """Real sockets, any text; `text` may be changed while it serves, None answers 404."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.asked = 0
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                told.asked += 1
                body = told.text if self.path == "/metrics" else None
                self.send_response(404 if body is None else 200)
                self.end_headers()
                self.wfile.write((body or "").encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def serving(text: str | None) -> Iterator[MetricsServer]:
    one = MetricsServer(text)
    thread = threading.Thread(target=lambda: one.server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()
        thread.join()


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait until something holds; fails when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
