"""The probe in a trace: work that was always the same tells how fast the machine was at each time of the run.

Runs that were made for it have requests whose names begin with ``probe-``: equal work, many times over the run, all of
one time with the same name up to the first dot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .trace import Trace

PREFIX = "probe-"
"""How names of the probe's requests begin."""
FloatArray = npt.NDArray[np.float64]


def probes_of(trace: Trace) -> tuple[FloatArray, FloatArray]:
    """When the probe began, and the device and host seconds of its steps each time, ``(probes,)`` both, in time."""
    requests = trace.columns("requests", ["request", "scheduled_s", "finished_s"])
    steps = trace.columns("steps", ["t_start_s", "t_end_s", "device_s", "host_s"])
    took_s = np.concatenate([[0.0], np.cumsum(steps["device_s"] + steps["host_s"])])
    place = {int(request): at for at, request in enumerate(requests["request"])}
    found = []
    for members in _groups(trace.names()):
        rows = [place[request] for request in members]
        start_s, end_s = requests["scheduled_s"][rows].min(), requests["finished_s"][rows].max()
        if np.isfinite(start_s) and np.isfinite(end_s):
            first = np.searchsorted(steps["t_start_s"], start_s, side="left")
            last = np.searchsorted(steps["t_end_s"], end_s, side="right")
            found.append((start_s, took_s[last] - took_s[first]))
    table = np.array(sorted(found), dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


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


def _groups(names: dict[int, str]) -> Sequence[list[int]]:
    """Numbers of the probe's requests, one list for each time it ran."""
    found: dict[str, list[int]] = {}
    for request, name in names.items():
        if name.startswith(PREFIX):
            found.setdefault(name.partition(".")[0], []).append(request)
    return list(found.values())
