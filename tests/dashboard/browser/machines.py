"""Processes that browser tests talk to: the dashboard and an engine, started as people start them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import ROOT

READY_S = 90.0
STOP_S = 20.0


@contextmanager
def started(*command: str) -> Iterator[str]:
    """A `python -m ...` that prints a line of JSON with its address once it is ready; SIGTERM ends it in order."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield _url_of(process)
        process.terminate()
        assert process.wait(STOP_S) == 0, "it did not end in order"
    finally:
        process.kill()  # it does nothing to one that has ended
        process.communicate()


@contextmanager
def dashboard(runs_dir: Path, *traces: Path, engine: str | None = None) -> Iterator[str]:
    """A dashboard of its own; yields its address, without the last slash."""
    also = ("--engine", engine) if engine else ()
    given = [str(path) for path in traces]
    with started("batchscope", "dashboard", *given, *also, "--port", "0", "--json", "--runs-dir", str(runs_dir)) as url:
        yield url.removesuffix("/live").rstrip("/")


def _url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    too_late = threading.Timer(READY_S, process.kill)
    too_late.start()
    try:
        line = process.stdout.readline()
    finally:
        too_late.cancel()
    assert line, f"it did not start (exit code {process.wait()})"
    return str(json.loads(line)["url"])
