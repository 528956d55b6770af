"""Running the app: signals, and a stop that lets requests finish."""

from __future__ import annotations

import asyncio
import copy
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
import uvicorn.config

if TYPE_CHECKING:
    from fastapi import FastAPI

    from backend.engine import Engine

_KEEP_ALIVE_S = 75
"""Longer than clients keep an idle connection (Python's: 5 s): else one may send on a connection just being closed."""
_LAST_BYTES_S = 10
"""After the engine has stopped, clients have so long to read what is theirs."""


def serve(server: Server, listener: socket.socket) -> int:
    """Serve until SIGINT or SIGTERM, and stop in order; returns how many requests were aborted for that."""
    asyncio.run(server.serve(sockets=[listener]))
    return server.aborted


class Server(uvicorn.Server):
    """Uvicorn, stopping in our order: the engine drains while connections do, since their streams end with it.

    It stops when a signal comes or `should_exit` is set: no more requests are taken, those there are may finish, and
    the engine is closed. A second signal ends the grace at once.

    Args:
        app: from `create_app`.
        engine: the app's; closed at the end.
        grace_s: seconds that requests may take to finish; what is left then is aborted.
        verbose: log requests on stderr.
        ready: called when clients can connect.

    Attributes:
        aborted: requests that did not finish, once it has stopped.
    """

    def __init__(
        self, app: FastAPI, engine: Engine, *, grace_s: float, verbose: bool = False,
        ready: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(
            uvicorn.Config(
                app,
                log_level="info" if verbose else "warning",
                access_log=verbose,
                log_config=_log_config(),
                server_header=False,
                headers=[("server", "batchscope")],
                lifespan="on",
                ws="none",
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(grace_s) + _LAST_BYTES_S,
            )
        )
        self.aborted = 0
        self._engine = engine
        self._grace_s = grace_s
        self._ready = ready
        self._hurry = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting; finish or abort what is in flight; close the engine and its trace."""
        draining = asyncio.create_task(self._drain())
        await super().shutdown(sockets)
        await draining

    async def _drain(self) -> None:
        closing = asyncio.create_task(asyncio.to_thread(self._engine.close, drain=True, timeout_s=self._grace_s))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({closing, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if hurry.done():
            self.aborted = await asyncio.to_thread(self._engine.close)
        hurry.cancel()
        self.aborted = max(self.aborted, await closing)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Uvicorn's, but the signals count as answered: a stop in order is no error."""
        with super().capture_signals():
            try:
                yield
            finally:
                self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks to stop, the second to hurry."""
        if self.should_exit:  # a signal comes between two instructions of the main thread, anywhere in the loop
            self._loop.call_soon_threadsafe(self._hurry.set)
        self.should_exit = True


def _log_config() -> dict[str, Any]:
    """Uvicorn's, with the log of requests on standard error like the rest."""
    config = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    config["handlers"]["access"]["stream"] = "ext://sys.stderr"
    return config
