"""What a feed holds of one run: its last steps, and what else happened in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.archive import last_of_each_request
from traces.schema import GAPS, REQUESTS, SPAN_EVENTS, STEPS
from traces.store import Rows

from .live_run import Gap, LiveRun
from .ring import Ring

MOST_EVENTS = 1 << 20
"""Of spans, requests and gaps. 20,000 steps of 256 slots have a tenth of that; it is there for what nobody foresaw."""
PRUNE_FROM = 4096
"""Rows below which nobody looks for what may go."""


class RunBuffer:
    """The last steps of a run with the spans, requests and gaps that touch them. One thread at a time.

    Args:
        key, name, meta: of the run.
        capacity: steps held.
        first: number of the first step that will come; what was before is not missed.

    Attributes:
        last_step: number of the newest step that came.
        whole: number of the newest step of which the other tables have come too; snapshots end with it.
        doubled: steps that came again and were left out.
        lost: steps that never came; `LiveRun.gaps_in_feed` says which, as long as steps behind them are held.
    """

    def __init__(self, key: str, name: str, meta: Mapping[str, Any], capacity: int, first: int = 0) -> None:
        self.key = key
        self.name = name
        self.meta = meta
        self.last_step = self.whole = first - 1
        self.doubled = self.lost = 0
        self.origin_s = math.nan
        self._steps = Ring(STEPS, capacity)
        self._others = {table.name: Ring(table, MOST_EVENTS) for table in (SPAN_EVENTS, REQUESTS, GAPS)}
        self._prune_at = dict.fromkeys(self._others, PRUNE_FROM)
        self._gaps: list[Gap] = []

    def add_steps(self, rows: Rows) -> None:
        """Steps in the order in which they came. Those known already are left out; those missing become a `Gap`."""
        rows = self._unknown(rows)
        if not len(rows):
            return
        step = rows["step"]
        before = np.append(self.last_step, step[:-1])
        for place in np.flatnonzero(step - before > 1):
            self._gaps.append(Gap(int(before[place]) + 1, int(step[place]) - 1))
            self.lost += len(self._gaps[-1])
        self._steps.append(rows)
        self.last_step = int(step[-1])
        if math.isnan(self.origin_s):
            self.origin_s = float(rows["t_start_s"][0])

    def add(self, table: str, rows: Rows) -> None:
        """Rows of `spans` (events), `requests` or `gaps`."""
        ring = self._others[table]
        ring.append(rows)
        if len(ring) > self._prune_at[table]:
            ring.keep(self._wanted(table, ring.rows()))
            self._prune_at[table] = max(PRUNE_FROM, 2 * len(ring))

    def forget_others(self) -> None:
        """Let go of all but steps: their rows go on elsewhere, and spans must not be paired over what is missing."""
        for ring in self._others.values():
            ring.keep(ring.rows()[:0])

    def settle(self, step: int) -> None:
        """All of the other tables has come that belongs to steps up to this one."""
        self.whole = max(self.whole, step)

    def snapshot(self, status: str) -> LiveRun:
        """The run as it is now; cheap."""
        steps = self._steps.rows()
        steps = steps[: np.searchsorted(steps["step"], self.whole, side="right")]
        first = int(steps["step"][0]) if len(steps) else 0
        rows = {"steps": steps, **{name: ring.rows() for name, ring in self._others.items()}}
        gaps = rows["gaps"]["step"]
        rows["gaps"] = rows["gaps"][np.searchsorted(gaps, first) : np.searchsorted(gaps, self.whole, side="right")]
        self._gaps = [gap for gap in self._gaps if gap.last >= first - 1]
        origin_s = 0.0 if math.isnan(self.origin_s) else self.origin_s
        known = tuple(gap for gap in self._gaps if gap.first <= self.whole)
        return LiveRun(self.key, self.name, self.meta, status, origin_s, known, self._steps.dropped, rows)

    def _unknown(self, rows: Rows) -> Rows:
        highest = np.maximum.accumulate(np.append(self.last_step, rows["step"]))[:-1]
        new = rows["step"] > highest
        self.doubled += int(np.count_nonzero(~new))
        return np.compress(new, rows)

    def _wanted(self, table: str, rows: Rows) -> Rows:
        """Without what ended before the first step held."""
        steps = self._steps.rows()
        if not len(steps):
            return rows
        first, first_s = steps["step"][0], steps["t_start_s"][0]
        if table == "gaps":
            return np.compress(rows["step"] >= first, rows)
        last = last_of_each_request(rows)
        if table == "requests":
            return np.compress(~(last["finished_s"] < first_s), last)
        ended: npt.NDArray[np.bool_] = (last["open"] == 0) & (last["step"] < first)
        return np.compress(~np.isin(rows["request"], last["request"][ended]), rows)
