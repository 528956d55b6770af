"""A run that is under way, as it is at one moment: the face of a recorded one over what a feed holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.archive import last_of_each_request
from traces.schema import table_named
from traces.spans import pair_spans
from traces.store import Columns, Rows
from traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Gap:
    """Steps ``first`` to ``last`` that the engine ran and the feed did not get."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(eq=False)
class LiveRun:
    """What is known of a running engine's last steps; nothing changes it later.

    Attributes:
        key: the run's identity; another run of the same server has another one.
        name: the model and where it runs.
        meta: as the server tells it.
        status: ``running``, as far as is known; ``finished`` or ``stopped`` once the recording has ended.
        origin_s: first arrival of the run, seconds on the engine's clock; it stays when old steps go.
        gaps_in_feed: steps that are missing among those held, or right before the first of them.
        dropped: steps that were held and had to go.
        rows: table -> rows as they were recorded (`spans` are events).
    """

    key: str
    name: str
    meta: Mapping[str, Any] = field(repr=False)
    status: str
    origin_s: float
    gaps_in_feed: tuple[Gap, ...]
    dropped: int
    rows: Mapping[str, Rows] = field(repr=False)
    trace: Trace | None = None

    @property
    def source(self) -> str:
        """``measured``, or what the server says that it plays."""
        return str(self.meta.get("source", "unknown"))

    @property
    def slots_total(self) -> int:
        """Seats."""
        return int(self.meta.get("slots_total", 0))

    @property
    def num_steps(self) -> int:
        """Steps held."""
        return len(self.rows["steps"])

    @property
    def first_step(self) -> int:
        """Number of the oldest step held; 0 where there is none."""
        return int(self.rows["steps"]["step"][0]) if self.num_steps else 0

    @property
    def last_step(self) -> int:
        """Number of the newest step held; -1 where there is none."""
        return int(self.rows["steps"]["step"][-1]) if self.num_steps else -1

    def column(self, table: str, name: str) -> npt.NDArray[Any]:
        """A column of `steps`, `spans`, `requests` or `gaps`, ``(rows,)``, not to be written to.

        Spans that have not ended last until the newest step and have no tokens yet; `tokens`, `plans` and `blocks` are
        not followed and are empty.
        """
        kept = self._columns.get((table, name))
        if kept is None:
            kept = np.ascontiguousarray(self._column(table, name))
            kept.flags.writeable = False
            self._columns[table, name] = kept
        return kept

    def names(self) -> Mapping[int, str]:
        """Always empty: the server does not tell the names of requests."""
        return {}

    def _column(self, table: str, name: str) -> npt.NDArray[Any]:
        if table == "spans":
            return self._spans[name]
        rows = self._requests if table == "requests" else self.rows.get(table)
        return np.empty(0, dtype=table_named(table).dtype[name]) if rows is None else rows[name]

    @cached_property
    def _columns(self) -> dict[tuple[str, str], npt.NDArray[Any]]:
        return {}

    @cached_property
    def _spans(self) -> Columns:
        last, events = self.last_step, self.rows["spans"]
        spans = pair_spans(events[events["step"] <= last], last)
        held = spans["last_step"] >= self.first_step
        spans = {name: column[held] for name, column in spans.items()}
        newest_s = self.rows["steps"]["t_end_s"][-1] if self.num_steps else np.nan
        spans["end_s"] = np.where(np.isnan(spans["end_s"]), newest_s, spans["end_s"])
        return spans

    @cached_property
    def _requests(self) -> Rows:
        rows = last_of_each_request(self.rows["requests"])
        if not self.num_steps:
            return rows
        ended = rows["finished_s"] < self.rows["steps"]["t_start_s"][0]  # nan: not yet
        return np.compress(~ended, rows)
