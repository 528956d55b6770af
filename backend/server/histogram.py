"""A histogram that costs next to nothing to fill: it is filled in the engine's thread, between two steps."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

REQUEST_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
"""Seconds of a request. Here and below: vLLM's bounds (vllm/v1/metrics/buckets.py), and finer ones below its first."""
FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKEN_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STEP_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def token_counts(most: int) -> tuple[int, ...]:
    """Bounds 1, 2, 5, 10, 20, 50, ... up to `most`."""
    bounds = [m * 10**e for e in range(len(str(most))) for m in (1, 2, 5)]
    return tuple(bound for bound in bounds if bound <= most)


class Histogram:
    """Counts of values by bucket, and their sum. Not thread-safe: its owner holds a lock.

    Args:
        bounds: inclusive upper bounds of the buckets, rising; one without a bound is added.
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def add_all(self, values: Iterable[float]) -> None:
        """Count several; a run of equal ones (the gaps of one step) is looked up once."""
        last, bucket = math.nan, 0
        counts, bounds = self._counts, self._bounds
        for value in values:
            if value != last:
                last, bucket = value, bisect_left(bounds, value)
            counts[bucket] += 1
            self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """``(upper bound, values up to it)`` as Prometheus wants them, ``+Inf`` last."""
        rows, so_far = [], 0
        for bound, count in zip((*map(float, self._bounds), math.inf), self._counts, strict=True):
            so_far += count
            rows.append(("+Inf" if bound == math.inf else str(bound), float(so_far)))
        return rows
