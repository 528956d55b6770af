"""A recorded trace as row files would have grown: for each step, how many rows every table had when it was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from traces.schema import GAPS, REQUESTS, SPAN_EVENTS, STEPS, Table
from traces.store import Columns, Rows
from traces.trace import Trace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reel:
    """Rows of each table in the order of their writing, and `ends[table][n]`: how many stood there after step row n."""

    trace: Trace
    rows: dict[str, Rows]
    ends: dict[str, Ints]

    @classmethod
    def of(cls, path: str | Path) -> Reel:
        """Of a trace's folder, however it is stored. Raises InputError."""
        trace = Trace.open(path)
        steps = _packed(STEPS, trace.columns("steps"))
        rows, ends = {"steps": steps}, {"steps": np.arange(1, len(steps) + 1)}
        timed = {
            "spans": _span_events(trace.columns("spans")),
            "requests": _request_rows(trace.columns("requests")),
        }
        for name, (table, time_s) in timed.items():
            rows[name] = table
            ends[name] = np.searchsorted(time_s, steps["t_end_s"], side="right")
        rows["gaps"] = _packed(GAPS, trace.columns("gaps"))
        ends["gaps"] = np.searchsorted(rows["gaps"]["step"], steps["step"], side="right")
        return cls(trace, rows, ends)

    def __len__(self) -> int:
        return len(self.rows["steps"])


def _packed(table: Table, columns: Columns) -> Rows:
    rows = np.empty(len(columns[table.names[0]]), dtype=table.dtype)
    for name in table.names:
        rows[name] = columns[name]
    return rows


def _span_events(spans: Columns) -> tuple[Rows, npt.NDArray[np.float64]]:
    """Events that open and close these spans, in time; a request's span closes before its next one opens."""
    opened = {"step": spans["first_step"], "time_s": spans["start_s"], "tokens": np.zeros_like(spans["tokens"])}
    closed = {"step": spans["last_step"], "time_s": spans["end_s"], "tokens": spans["tokens"]}
    shared = {name: spans[name] for name in ("request", "slot", "kind")}
    both = []
    for columns, is_open in ((opened, 1), (closed, 0)):
        both.append(_packed(SPAN_EVENTS, {**columns, **shared, "open": np.full(len(spans["kind"]), is_open)}))
    interleaved = np.stack(both, axis=1).ravel()  # open, close, open, close of a request: it stays so at equal times
    known = interleaved[~np.isnan(interleaved["time_s"])]
    events = known[np.argsort(known["time_s"], kind="stable")]
    return events, events["time_s"]


def _request_rows(requests: Columns) -> tuple[Rows, npt.NDArray[np.float64]]:
    """A row when a request arrives, and the whole one when it ends."""
    whole = _packed(REQUESTS, requests)
    arrived = whole.copy()
    for name in ("scheduled_s", "first_token_s", "finished_s"):
        arrived[name] = np.nan
    for name in ("output_tokens", "cached_tokens", "preemptions", "finish_reason"):
        arrived[name] = 0
    ended = whole[~np.isnan(whole["finished_s"])]
    rows = np.concatenate([arrived, ended])
    time_s = np.concatenate([arrived["queued_s"], ended["finished_s"]])
    order = np.argsort(time_s, kind="stable")
    return rows[order], time_s[order]
