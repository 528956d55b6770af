"""Percentiles from a histogram's buckets, as what is known of them: between which bounds they lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .scrape import Counts


@dataclass(frozen=True, slots=True)
class QuantileRange:
    """The smallest value that at least a share `q` of values does not exceed lies in ``(low_s, high_s]``.

    Attributes:
        q: the share, as 0.99.
        values: how many there were.
    """

    q: float
    low_s: float
    high_s: float
    values: int

    def words(self) -> str:
        """As text: ``between 25 and 50 ms``."""
        if math.isinf(self.high_s):
            return f"more than {_seconds(self.low_s)}"
        if self.low_s <= 0:
            return f"at most {_seconds(self.high_s)}"
        return f"between {_seconds(self.low_s)} and {_seconds(self.high_s)}"


def quantile_range(counts: Counts, q: float) -> QuantileRange | None:
    """Where a percentile lies; None where there are no values.

    By the nearest rank: it is the value number ceil(q n) of n, and the bucket in which that lies is known.
    """
    values = round(float(counts.counts.sum()))
    if values <= 0:
        return None
    rank = max(1, math.ceil(q * values - 1e-9))  # 0.9 * 10 must not become the tenth by rounding
    place = int(np.searchsorted(np.cumsum(counts.counts), rank - 0.5))
    low_s = 0.0 if place == 0 else float(counts.bounds[place - 1])
    return QuantileRange(q, low_s, float(counts.bounds[place]), values)


def _seconds(value_s: float) -> str:
    return f"{value_s * 1e3:.3g} ms" if value_s < 1 else f"{value_s:.4g} s"
