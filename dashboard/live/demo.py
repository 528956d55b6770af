"""A demonstration: an engine with the embedded model and load for it, as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from scheduler.errors import UserError

ROOT = Path(__file__).resolve().parent.parent.parent
"""Where the rooms are, in a checkout or in an installed wheel."""
SETTINGS = ("--max-num-seqs", "16", "--max-num-batched-tokens", "512", "--num-blocks", "600", "--threads", "1")
"""Small enough that slots run out, prompts are split and the queue grows now and then."""
RATE = 8.0
READY_S = 60.0
STOP_S = 10.0


class LiveDemo:
    """Engine and load, both ended by `close`. A context manager.

    Args:
        rate: requests a second.
        seed: of the load.
        model: what the engine serves.
        settings: further options of `batchscope serve`; they win over `SETTINGS`.

    Attributes:
        url: where the engine answers.

    Raises:
        UserError: the engine did not start (it said why on standard error).
    """

    def __init__(
        self, *, rate: float = RATE, seed: int = 0, model: str = "embedded", settings: Sequence[str] = ()
    ) -> None:  # fmt: skip
        serve = ("serve", "--json", "--port", "0", "--grace", "0", "--model", model, *SETTINGS, *settings)
        self._load: subprocess.Popen[str] | None = None
        self._engine = _start("batchscope", *serve)
        try:
            self.url = _url_of(self._engine)
            options = ("--rate", f"{rate}", "--seed", f"{seed}", "--full-length")
            self._load = _start("dashboard.live.load", self.url, *options)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LiveDemo:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether both still run."""
        return self._engine.poll() is None and self._load is not None and self._load.poll() is None

    def close(self) -> None:
        """End load and engine, in this order; may be called twice."""
        for process in (self._load, self._engine):
            if process is not None:
                _stop(process)


def _start(module: str, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})


def _url_of(engine: subprocess.Popen[str]) -> str:
    """The address, once the engine is ready."""
    assert engine.stdout is not None
    too_late = threading.Timer(READY_S, engine.kill)
    too_late.start()
    try:
        line = engine.stdout.readline()
    finally:
        too_late.cancel()
    if not line:
        raise UserError(f"the engine did not start (exit code {engine.wait()}); it says why above")
    return str(json.loads(line)["url"])


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
