"""Live sources in the catalog: a key for each address, and one snapshot for all panels of a moment."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable

from scheduler.errors import UserError

from .run import Run

FRESH_S = 0.2
"""Panels that ask within so long get the same snapshot: they then show the same moment, and share its columns."""


def live_key(url: str) -> str:
    """The key of an address."""
    return "live-" + hashlib.sha256(url.encode()).hexdigest()[:12]


class Recent:
    """The last snapshot of a live run, taken anew when it is old. Thread-safe.

    Args:
        take: takes a snapshot; None: nothing has come yet.
    """

    def __init__(self, take: Callable[[], Run | None]) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._taken_s = -1e9

    def __call__(self) -> Run:
        """The run. Raises UserError before its first step has come."""
        with self._lock:
            if time.monotonic() - self._taken_s > FRESH_S:
                self._run, self._taken_s = self._take() or self._run, time.monotonic()
            if self._run is None:
                raise UserError("nothing has come from the engine yet")
            return self._run
