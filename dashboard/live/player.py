"""Plays a recorded trace as if its engine were running: the very routes of the server over row files that grow.

    python -m dashboard.live.player run.trace --speed 60

For tests, benchmarks, and showing a recording in the live view; it loads no model.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from scheduler.errors import UserError

from .reel import Reel

if TYPE_CHECKING:
    import socket

    from backend.engine import Engine

TICK_S = 0.01
"""How often the files grow, seconds."""


class Recording:
    """A trace's folder that grows step by step, locked as by its recorder.

    Args:
        reel: what is written into it.
        folder: where; must not exist yet.
        again: what the meta says besides what the recorded one says.
    """

    def __init__(self, reel: Reel, folder: Path, **again: Any) -> None:
        from traces.schema import RECORDED
        from traces.store import RowFile, describe_tables, lock, write_meta

        folder.mkdir()
        self.trace_path = folder
        self.written = 0
        self._reel = reel
        left_out = ("complete", "closed", "rows", "end_s", "plans", "token_times")
        kept = {name: value for name, value in reel.trace.meta.items() if name not in left_out}
        self._meta = {**kept, **describe_tables(), **again, "complete": False, "closed": False}
        write_meta(folder, self._meta)
        self._files = {name: RowFile(folder / f"{name}.rows") for name in RECORDED}
        lock(self._files["steps"])

    def advance(self, count: int) -> None:
        """Write so many more steps, and what belongs to them before them."""
        end = min(len(self._reel), self.written + count)
        if end == self.written:
            return
        for name in ("spans", "requests", "gaps", "steps"):
            rows, ends = self._reel.rows[name], self._reel.ends[name]
            first = int(ends[self.written - 1]) if self.written else 0
            self._files[name].rows.append(rows[first : int(ends[end - 1])].tobytes())
            self._files[name].flush()
        self.written = end

    def close(self) -> None:
        """End the recording in order; the folder stays."""
        from traces.store import write_meta

        if not self._meta["closed"]:
            self._meta.update(complete=self.written == len(self._reel), closed=True)
            write_meta(self.trace_path, self._meta)
            for file in self._files.values():
                file.close()


class Player:
    """Serves a recording over HTTP on a free port of this machine. A context manager.

    Steps come when `advance` is called, or by themselves when `play` is.

    Args:
        path: the trace's folder.
    """

    def __init__(self, path: str | Path) -> None:
        self._reel = Reel.of(path)
        self._folder = Path(tempfile.mkdtemp(prefix="batchscope-player-"))
        self._runs = self._port = 0
        self._server: Any = None
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self.begin()
        self.serve()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Steps of the trace."""
        return len(self._reel)

    @property
    def recording(self) -> Recording:
        """What is being written."""
        return self._recording

    def begin(self) -> None:
        """Begin another run of the same trace, as a server that was started anew does; `serve` shows it."""
        from backend.server.service import Service

        self._runs += 1
        self._recording = Recording(self._reel, self._folder / f"{self._runs}.trace")
        # the routes ask an engine for nothing but where its trace is
        engine = cast("Engine", self._recording)
        self._service = Service(engine, ["player"], max_body=0, max_queue=None)

    def serve(self) -> None:
        """Take connections (again), at the address that it had."""
        from backend.server.listener import bind, url_of

        self._listener = bind("127.0.0.1", self._port)
        self._port = int(self._listener.getsockname()[1])
        self.url = url_of(self._listener)
        self._server = _server(self._service)
        server, listener = self._server, self._listener
        self._thread = threading.Thread(target=lambda: server.run(sockets=[listener]), name="player", daemon=True)
        self._thread.start()

    def hang_up(self) -> None:
        """Drop all connections and take no more, in the middle of whatever is being said."""
        if self._thread is not None and self._listener is not None:
            self._server.force_exit = self._server.should_exit = True
            self._thread.join()
            self._listener.close()
            self._thread = None

    def play(self, speed: float) -> None:
        """Let the recorded time pass at this speed until the trace's end; returns then."""
        steps = self._reel.rows["steps"]["t_end_s"]
        begun_s, from_s = time.monotonic(), float(steps[0]) if len(steps) else 0.0
        while self.recording.written < len(self):
            now_s = from_s + (time.monotonic() - begun_s) * speed
            self.recording.advance(int(steps.searchsorted(now_s, side="right")) - self.recording.written)
            time.sleep(TICK_S)

    def close(self) -> None:
        """Stop serving and remove what was written; may be called twice."""
        self.hang_up()
        self._recording.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _server(service: Any) -> Any:
    import uvicorn
    from fastapi import FastAPI

    from backend.server import errors, trace_routes

    app = FastAPI()
    app.state.service = service
    errors.install(app)
    app.include_router(trace_routes.router)
    config = uvicorn.Config(app, log_level="critical", access_log=False, ws="none", lifespan="off")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # older uvicorns have it
    return server


@click.command()
@click.argument("trace")
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
              help="Recorded seconds for a second.")  # fmt: skip
@click.option("--linger", type=click.FloatRange(min=0), default=0.0, help="Serve so many seconds after the end.")
def main(trace: str, speed: float, linger: float) -> None:
    """Play TRACE; prints one line of JSON with the address."""
    try:
        player = Player(trace)
    except UserError as error:
        raise click.ClickException(str(error)) from error
    with player:
        click.echo(json.dumps({"url": player.url, "steps": len(player), "pid": os.getpid()}))
        sys.stdout.flush()
        player.play(speed)
        player.recording.close()
        time.sleep(linger)


if __name__ == "__main__":
    main()
