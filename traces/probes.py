"""The probe in a trace: work that was always the same tells how slow the machine was at each time of the run.

A shared machine changes its speed within seconds. A run that is interleaved with a probe (`backend.probe`) keeps in its
meta, under ``probe``, when it ran and how long it took: ``{"t_s": [...], "seconds": [...]}``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError

from .trace import Trace

META = "probe"
WINDOW_S = 2.0
"""Probes at most half of this away say how slow the machine was. Over so long, steps and the probe went up and down
together on a shared 2-core machine (correlation 0.94, their ratio within 2.4%); in windows of 0.4 s hardly (0.66)."""
FloatArray = npt.NDArray[np.float64]


def probes_of(trace: Trace) -> tuple[FloatArray, FloatArray]:
    """When the probe ran and how long it took, seconds, ``(probes,)`` both, in time; empty where there was none.

    Raises InputError for a meta that says anything else.
    """
    told = trace.meta.get(META) or {"t_s": [], "seconds": []}
    try:
        times_s, seconds = (np.array(told[name], dtype=np.float64) for name in ("t_s", "seconds"))
    except (TypeError, KeyError, ValueError) as error:
        raise _wrong(trace) from error
    if times_s.shape != seconds.shape or times_s.ndim != 1:
        raise _wrong(trace)
    if not (np.isfinite(times_s).all() and np.isfinite(seconds).all() and (seconds > 0).all()):
        raise _wrong(trace)
    order = np.argsort(times_s, kind="stable")
    return times_s[order], seconds[order]


def seconds_around(times_s: FloatArray, seconds: FloatArray, at_s: FloatArray) -> FloatArray:
    """What the probe took around each moment, ``(moments,)``: the mean over `WINDOW_S`, or the nearest one's.

    Args:
        times_s: of `probes_of`, at least one.
        seconds: of `probes_of`.
        at_s: moments, rising.
    """
    first, last = (np.searchsorted(times_s, at_s + side * WINDOW_S / 2) for side in (-1, 1))
    total = np.concatenate(([0.0], np.cumsum(seconds)))
    after = np.clip(np.searchsorted(times_s, at_s), 1, max(len(times_s) - 1, 1))
    before_s, after_s = times_s[after - 1], times_s[np.minimum(after, len(times_s) - 1)]
    nearest = np.where(at_s - before_s <= after_s - at_s, after - 1, np.minimum(after, len(times_s) - 1))
    found: FloatArray = np.where(
        last > first, (total[last] - total[first]) / np.maximum(last - first, 1), seconds[nearest]
    )
    return found


def steadiness(trace: Trace) -> dict[str, Any]:
    """How often the probe ran, its seconds, least, median and most, and by how much the median of its last third
    differs from that of its first (`drift`, relative; None for fewer than three).
    """
    _, seconds = probes_of(trace)
    if not len(seconds):
        return {"runs": 0, "min_s": None, "median_s": None, "max_s": None, "drift": None}
    third = len(seconds) // 3
    drift = float(np.median(seconds[-third:]) / np.median(seconds[:third]) - 1) if third else None
    return {
        "runs": len(seconds), "min_s": float(seconds.min()), "median_s": float(np.median(seconds)),
        "max_s": float(seconds.max()), "drift": drift,
    }  # fmt: skip


def _wrong(trace: Trace) -> InputError:
    return InputError(f"meta.json: {META} is no list of times and of seconds > 0, as many of each", path=trace.path)
