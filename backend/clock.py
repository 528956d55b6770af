"""The engine's clock: seconds since it started, one for all its threads."""

from __future__ import annotations

import time


class Clock:
    """Monotonic seconds since this object was made; `started_s` is that moment in Unix time."""

    def __init__(self) -> None:
        self.started_s = time.time()
        self._zero = time.perf_counter()

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._zero
