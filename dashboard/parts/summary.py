"""The figures of runs side by side, each with its difference to one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import html

from dashboard.data.requests import once
from dashboard.data.run import Run
from dashboard.look import RUN_NAMES
from dashboard.numbers import NONE, digits, percent, seconds
from dashboard.parts.aria import aria
from dashboard.scene import Scene
from traces.record import record_of
from traces.run_table import count

Record = Mapping[str, Any]
FACTOR = 2.0
"""From so many times on a difference is told as a factor, not in percent."""
SAME = 0.0005
"""A smaller relative difference counts as none: it would show as 0.0%."""
STATUS = {
    "stopped": "stopped early",
    "killed": "cut off: its recorder was killed",
    "running": "still running",
}


@dataclass(frozen=True)
class Row:
    """One figure of the table.

    Attributes:
        label: what it is, with its unit where the value does not show one.
        get: the figure in a record; None where there is none.
        show: the figure as text.
        better: whether more of it is better (1), less (-1), or neither (0).
        why_none: why a run may not have it.
        points: a share, whose difference is told in percentage points.
    """

    label: str
    get: Callable[[Record], float | None]
    show: Callable[[float], str]
    better: int
    why_none: str = "nothing was served"
    points: bool = False


def _spread(metric: str, figure: str) -> Callable[[Record], float | None]:
    return lambda record: None if record[metric] is None else float(record[metric][figure])


def _field(name: str) -> Callable[[Record], float | None]:
    return lambda record: None if record[name] is None else float(record[name])


def _whole(value: float) -> str:
    return f"{value:,.0f}"


_ONCE = "no request delivered two tokens one after the other"
_ENDED = "no request ended by itself"
ROWS = (
    Row("Output tokens per second", _field("output_tokens_per_s"), digits, 1),
    Row("Requests per second", _field("requests_per_s"), digits, 1),
    Row("TTFT, mean", _spread("ttft_s", "mean"), seconds, -1, "no request got a token"),
    Row("TTFT, p99", _spread("ttft_s", "p99"), seconds, -1, "no request got a token"),
    Row("ITL, p99", _spread("itl_s", "p99"), seconds, -1, _ONCE),
    Row("TPOT, mean", _spread("tpot_s", "mean"), seconds, -1, _ONCE),
    Row("TPOT, p99", _spread("tpot_s", "p99"), seconds, -1, _ONCE),
    Row("E2E, mean", _spread("e2e_s", "mean"), seconds, -1, _ENDED),
    Row("E2E, p99", _spread("e2e_s", "p99"), seconds, -1, _ENDED),
    Row("Queue, mean", _spread("queue_s", "mean"), seconds, -1, "no request got a seat"),
    Row("Slot occupancy", _field("slot_occupancy"), percent, 0, "the run took no time", points=True),
    Row("Padding, share of rows", _field("padding_fraction"), percent, -1, "no row was computed", points=True),
    Row("Preemptions", _field("preemptions"), _whole, -1),
    Row("Tokens computed again", _field("recomputed_tokens"), _whole, -1),
    Row("Steps", _field("steps"), _whole, 0),
    Row("Makespan", _field("makespan_s"), seconds, -1),
)
_LIVE = "a live run has no totals before it has ended"
_ATALL_ONCE = "all tokens of a request are delivered at once"


def summary(scene: Scene, baseline: int = 0) -> Any:
    """A table of the whole runs' figures, a column each; the others with their difference to the run `baseline`."""
    records = [record_for(run) for run in scene.runs]
    body = [_line(scene, row, records, baseline) for row in ROWS]
    return html.Div(
        html.Table([html.Thead(_heads(scene, records, baseline)), html.Tbody(body)], className="figures summary"),
        className="summary-scroll",
        style={"overflowX": "auto"},
    )


def record_for(run: Run) -> Record | None:
    """The record of a run, taken once; None of a live one."""
    trace = run.trace
    return None if trace is None else once(run, "record", lambda _: record_of(trace))


def same_requests(run: Run, other: Run) -> bool:
    """Whether two runs were asked the same: one better than the other means something only then."""
    digests = [str((each.meta.get("workload") or {}).get("digest") or "") for each in (run, other)]
    if digests[0] and digests[0] == digests[1]:
        return True
    return bool(np.array_equal(run.column("requests", "prompt_tokens"), other.column("requests", "prompt_tokens")))


def _heads(scene: Scene, records: list[Record | None], baseline: int) -> Any:
    cells = [html.Th("Whole run", scope="col")]
    for index, (run, record) in enumerate(zip(scene.runs, records, strict=True)):
        letter = f"{RUN_NAMES[index]} · " if len(scene.runs) > 1 else ""
        kind = run.source if run.source in ("simulated", "measured") else "unknown"
        lines: list[Any] = [html.Span([letter, run.name], style={"color": f"var(--run-{index})"}), " ",
                 html.Span(kind, className=f"badge {kind}")]  # fmt: skip
        others = [] if same_requests(run, scene.runs[baseline]) else [f"other requests than {RUN_NAMES[baseline]}"]
        told = [html.Div(note, className="summary-note") for note in [*others, *notes(run, record)]]
        cells.append(html.Th([html.Div(lines), *told], scope="col"))
    return html.Tr(cells)


def notes(run: Run, record: Record | None) -> list[str]:
    """What one should know before one compares a run's figures."""
    told = [STATUS[run.status]] if run.status in STATUS else []
    if record is None:
        return told
    if record["saturated"]:
        told.append("falls behind its arrivals")
    if beyond_data(record["extrapolated"]):
        told.append(beyond_data(record["extrapolated"]))
    if record["caveat"]:
        told.append(record["caveat"])
    skipped = sum(record["skipped"].values())
    if skipped:
        told.append(f"{skipped:,} requests left out: they could never be served")
    failed = record["finish_reasons"].get("error", 0)
    if failed:
        told.append(f"{failed:,} requests failed")
    return told


def beyond_data(extrapolation: object) -> str:
    """How many steps of a simulated run were priced on no ground, and why; empty where its meta tells of none."""
    if not isinstance(extrapolation, Mapping) or not isinstance(extrapolation.get("steps"), int):
        return ""
    steps = count(extrapolation["steps"], "step")
    return f"{steps} priced beyond the cost model's data: {extrapolation.get('reason', '')}"


def _line(scene: Scene, row: Row, records: list[Record | None], baseline: int) -> Any:
    values = [None if record is None else row.get(record) for record in records]
    base = values[baseline] if baseline < len(values) else None
    judged = [same_requests(run, scene.runs[baseline]) for run in scene.runs]
    cells = [
        _cell(row, value, None if index == baseline else base, judged[index], _why_none(row, run))
        for index, (run, value) in enumerate(zip(scene.runs, values, strict=True))
    ]
    return html.Tr([html.Th(row.label, scope="row"), *cells])


def _why_none(row: Row, run: Run) -> str:
    if run.trace is None:
        return _LIVE
    return _ATALL_ONCE if row.why_none == _ONCE and not run.meta.get("streams", True) else row.why_none


def _cell(row: Row, value: float | None, base: float | None, judged: bool, why_none: str) -> Any:
    if value is None:
        return html.Td(html.Span(NONE, title=why_none, **aria(label=f"none: {why_none}")))
    return html.Td([row.show(value), *_difference(row, value, base, judged)])


def _difference(row: Row, value: float, base: float | None, judged: bool) -> list[Any]:
    """How a figure differs from the baseline's and, where it is `judged`, whether that is better."""
    if base is None:
        return []
    if abs(value - base) <= SAME * max(abs(value), abs(base)):
        return [html.Div("same", className="difference same")]
    side = row.better * (1 if value > base else -1) if judged else 0
    arrow, word = "▲" if value > base else "▼", {1: "better", -1: "worse", 0: ""}[side]
    kind = word or "neither"
    return [
        html.Div(f"{arrow} {change(value, base, points=row.points)} {word}".rstrip(), className=f"difference {kind}")
    ]


def change(value: float, base: float, *, points: bool = False) -> str:
    """A difference in words: in percent, as a factor where that is large, in percentage points of shares."""
    if points:
        return f"{100 * (value - base):+.1f} points".replace("-", "−")
    if base == 0:
        return f"{value - base:+,.4g}".replace("-", "−")
    ratio = value / base
    if ratio >= FACTOR:
        return f"× {digits(ratio, 2)}"
    if 0 < ratio <= 1 / FACTOR:
        return f"÷ {digits(1 / ratio, 2)}"
    rise = 100 * (ratio - 1)
    return f"{rise:+.{1 if abs(round(rise, 6)) < 10 else 0}f}%".replace("-", "−")
