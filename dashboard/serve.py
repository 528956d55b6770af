"""Serving the dashboard: what it needs put together, a threaded WSGI server, and a stop in order."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from .data.catalog import Catalog, given_traces, sample_traces
from .services import Services

if TYPE_CHECKING:
    from dash import Dash

THREADS = 8
"""Figures of one page are asked for side by side; numpy and pyarrow let threads run."""


@dataclass(frozen=True)
class Settings:
    """What a dashboard is told.

    Attributes:
        traces: folders ``NAME.trace``, or folders that hold some.
        runs_dir: where its own runs go.
        workers: simulations at once.
        engine: address of a live source to offer first.
        api_key: what that source asks for.
        max_age_days: runs and uploads older than that go.
        max_gib: and the oldest, when all take more than that.
        allowed: policies and cost models of the user's own that pages may name.
    """

    traces: Sequence[Path] = ()
    runs_dir: Path = Path("batchscope-runs")
    workers: int = 1
    engine: str | None = None
    api_key: str | None = None
    max_age_days: float = 7.0
    max_gib: float = 2.0
    allowed: Sequence[str] = ()


def default_runs_dir() -> Path:
    """Where runs go unless told: the user's folder for an application's state."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "batchscope" / "runs"


@contextlib.contextmanager
def services_of(settings: Settings, warn: Callable[[str], None] = lambda sentence: None) -> Iterator[Services]:
    """Everything behind the pages; its workers and feeds end with the context.

    Args:
        settings: what it is told.
        warn: told of each trace that is left out.

    Raises:
        UserError: a trace that is none, or a folder for runs that cannot be had.
    """
    import pyarrow.parquet  # noqa: F401  # takes half a second: better before the first visit than in it

    from .live.feeds import Feeds
    from .runs.jobs import Jobs
    from .runs.store import RunStore
    from .runs.uploads import Uploads
    from .what_if.resolver import resolver

    folders = {**given_traces(settings.traces, warn), **sample_traces()}
    age_s, size = settings.max_age_days * 86400, int(settings.max_gib * 2**30)
    with contextlib.ExitStack() as stack:
        store = RunStore(settings.runs_dir / "runs", max_age_s=age_s, max_bytes=size)
        stack.callback(store.close)
        uploads = Uploads(settings.runs_dir / "uploads", max_age_s=age_s, max_bytes=size)
        stack.callback(uploads.close)
        jobs = Jobs(store, uploads, workers=settings.workers, allowed=settings.allowed)
        stack.callback(jobs.close)
        feeds = Feeds()
        stack.callback(feeds.close)
        catalog = Catalog(folders, [resolver(store, uploads)])
        yield Services(catalog, store, jobs, uploads, feeds, settings.engine, settings.api_key)


def serve(app: Dash, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    import waitress.server

    server = waitress.server.create_server(
        app.server, sockets=[listener], threads=THREADS, ident="batchscope", clear_untrusted_proxy_headers=True,
        max_request_body_size=64 << 20,
    )  # fmt: skip
    with _stopping():
        server.run()  # returns on KeyboardInterrupt
        server.close()


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """SIGTERM stops like Ctrl-C."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
