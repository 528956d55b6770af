"""The engine's clock: seconds since it started, one for all its threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Monotonic seconds since this object was made; `started_s` is that moment in Unix time.

    One thread may hold it (`held`); all read it.
    """

    def __init__(self) -> None:
        self.started_s = time.time()
        self._zero = time.perf_counter()
        self._held_s: float | None = None

    def now(self) -> float:
        """Seconds since the start, less those in which it was held."""
        held_s = self._held_s
        return time.perf_counter() - self._zero if held_s is None else held_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, no time passes."""
        held_s = self._held_s = self.now()
        try:
            yield
        finally:
            self._zero = time.perf_counter() - held_s
            self._held_s = None
