"""Step traces for other programs: CSV tables, and Chrome trace JSON, which Perfetto opens (https://ui.perfetto.dev).

The JSON follows the "Trace Event Format" of Chromium: complete events (``X``), async ones (``b``, ``e``), instants
(``i``), counters (``C``) and names (``M``); times in microseconds.
"""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import UserError

from . import schema
from .console import atomic_path
from .schema import CODES, PREEMPTED, QUEUED, SPAN_KINDS

if TYPE_CHECKING:
    from .store import Columns
    from .trace import Trace

CSV_TABLES = ("steps", "spans", "requests", "gaps")
Event = dict[str, Any]

_SLOTS, _QUEUE, _COUNTERS = 1, 2, 3
_PROCESSES = {_SLOTS: "slots", _QUEUE: "waiting requests", _COUNTERS: "counters"}
_MICROSECONDS = 1e6
_COUNTED = {
    "requests": ("running", "waiting"),
    "KV blocks": ("blocks_used", "blocks_cached"),
    "tokens": ("prefill_tokens", "decode_tokens", "recomputed_tokens", *schema.PADDING_COLUMNS.values()),
}
"""Counter track -> the columns of `steps` it stacks."""


def export_csv(trace: Trace, out: str | Path) -> None:
    """Write one CSV file a table into the folder `out`; codes as names, nan as nothing. Each file appears whole.

    Raises:
        UserError: the disk is full, or the folder cannot be made.
    """
    folder = Path(out)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error
    try:
        for table in [*CSV_TABLES, *(("plans", "blocks") if trace.meta.get("plans") else ())]:
            with atomic_path(folder / f"{table}.csv") as temporary:
                _write_csv(trace, table, temporary)
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: what was written before stays
            folder.rmdir()
        raise


def export_chrome(trace: Trace, out: str | Path) -> None:
    """Write a trace as Chrome JSON: one track a slot, waiting requests, and counters.

    Raises:
        UserError: the disk is full, or the file cannot be written.
    """
    with atomic_path(out) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(chrome_events(trace)):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":"), allow_nan=False))
        file.write("\n]}\n")


def chrome_events(trace: Trace) -> Iterator[Event]:
    """The events of `export_chrome`: names first, then slices slot by slot in order of time, then the rest."""
    spans = trace.columns("spans")
    end_s = _end_s(trace)
    spans["end_s"] = np.where(np.isnan(spans["end_s"]), np.maximum(end_s, spans["start_s"]), spans["end_s"])
    names = trace.names()
    waiting = np.isin(spans["kind"], (QUEUED, PREEMPTED))
    yield from _names(spans["slot"][~waiting])
    yield from _slices({name: column[~waiting] for name, column in spans.items()}, names)
    yield from _waits({name: column[waiting] for name, column in spans.items()}, names)
    yield from _lost_seats(spans, names)
    yield from _counters(trace)


def _write_csv(trace: Trace, table: str, path: Path) -> None:
    names = schema.table_named(table).names
    request_names = trace.names() if table == "requests" else {}
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, "name"] if request_names else names)
        for chunk in trace.chunks(table):
            rows = zip(*(_texts(name, chunk[name]) for name in names), strict=True)
            if request_names:
                writer.writerows([*row, request_names.get(row[0], row[0])] for row in rows)
            else:
                writer.writerows(rows)


def _texts(name: str, values: npt.NDArray[Any]) -> list[Any]:
    """Values as CSV shows them."""
    if name in CODES:
        return [CODES[name][code] for code in values.tolist()]
    if values.dtype.kind == "f" and np.isnan(values).any():
        return ["" if value != value else value for value in values.tolist()]
    listed: list[Any] = values.tolist()
    return listed


def _end_s(trace: Trace) -> float:
    ends = trace.column("steps", "t_end_s")
    return float(ends[-1]) if len(ends) else 0.0


def _names(slots: npt.NDArray[np.int32]) -> Iterator[Event]:
    for process, name in _PROCESSES.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for slot in np.unique(slots).tolist():
        yield {"ph": "M", "name": "thread_name", "pid": _SLOTS, "tid": slot, "args": {"name": f"slot {slot}"}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": _SLOTS, "tid": slot, "args": {"sort_index": slot}}


def _slices(spans: Columns, names: dict[int, str]) -> Iterator[Event]:
    for span in _rows(spans, np.lexsort((spans["start_s"], spans["slot"]))):
        yield {
            "ph": "X", "pid": _SLOTS, "tid": span["slot"], "cat": span["kind"],
            "name": f"{span['kind']} {_name(span, names)}", "ts": span["ts"], "dur": span["end"] - span["ts"],
            "args": _arguments(span),
        }  # fmt: skip


def _waits(spans: Columns, names: dict[int, str]) -> Iterator[Event]:
    for span in _rows(spans, np.argsort(spans["start_s"], kind="stable")):
        shared = {
            "pid": _QUEUE, "tid": 0, "cat": span["kind"], "id": span["request"],
            "name": f"{span['kind']} {_name(span, names)}",
        }  # fmt: skip
        yield {"ph": "b", "ts": span["ts"], **shared, "args": _arguments(span)}
        yield {"ph": "e", "ts": span["end"], **shared}


def _lost_seats(spans: Columns, names: dict[int, str]) -> Iterator[Event]:
    """A mark on the slot that a preempted request lost: its span before."""
    lost = np.flatnonzero(spans["kind"] == PREEMPTED)
    lost = lost[lost > 0]
    before = lost - 1
    held = (spans["request"][before] == spans["request"][lost]) & (spans["slot"][before] >= 0)
    for span, slot in zip(_rows(spans, lost[held]), spans["slot"][before[held]].tolist(), strict=True):
        yield {
            "ph": "i", "s": "t", "pid": _SLOTS, "tid": slot, "ts": span["ts"], "cat": "preempted",
            "name": f"preempted {_name(span, names)}",
        }  # fmt: skip


def _counters(trace: Trace) -> Iterator[Event]:
    """A counter event wherever a figure changes; 0 from the end on."""
    for track, columns in _COUNTED.items():
        before: tuple[int, ...] | None = None
        for chunk in trace.chunks("steps", ["t_start_s", *columns]):
            values = zip(*(chunk[name].tolist() for name in columns), strict=True)
            for start_s, figures in zip(chunk["t_start_s"].tolist(), values, strict=True):
                if figures != before:
                    yield _counter(track, start_s, dict(zip(columns, figures, strict=True)))
                before = figures
        yield _counter(track, _end_s(trace), dict.fromkeys(columns, 0))


def _counter(track: str, time_s: float, figures: dict[str, int]) -> Event:
    return {"ph": "C", "pid": _COUNTERS, "tid": 0, "name": track, "ts": time_s * _MICROSECONDS, "args": figures}


def _rows(spans: Columns, order: npt.NDArray[np.intp]) -> Iterator[dict[str, Any]]:
    columns = {name: spans[name][order].tolist() for name in spans}
    columns["kind"] = [SPAN_KINDS[kind] for kind in columns["kind"]]
    columns["ts"] = (spans["start_s"][order] * _MICROSECONDS).tolist()
    columns["end"] = (spans["end_s"][order] * _MICROSECONDS).tolist()
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _name(span: dict[str, Any], names: dict[int, str]) -> str:
    return names.get(span["request"], str(span["request"]))


def _arguments(span: dict[str, Any]) -> dict[str, Any]:
    return {name: span[name] for name in ("request", "first_step", "last_step", "tokens")}
