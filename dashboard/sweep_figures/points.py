"""The points of a sweep as its figures need them: those that ran, their figures, and whether they meet the limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.look import Figure, Look, axis, layout
from dashboard.numbers import digits, percent, seconds
from dashboard.what_if.sweep_form import point_text
from simulator.slo import Figure as Latency
from simulator.slo import Slo

Row = Mapping[str, Any]
Limits = Mapping[str, float]
"""Metric (``ttft``) -> most seconds: of its p99, and of each request where goodput is told."""


@dataclass(frozen=True)
class Quantity:
    """One figure of a run that can be shown.

    Attributes:
        title: what it is, with its unit.
        of: its value in a row; None where there is none.
        shown: the value for people.
    """

    title: str
    of: Callable[[Row], float | None]
    shown: Callable[[float | None], str]


def latency_title(name: str) -> str:
    """``e2e_p99`` as people read it."""
    metric, _, figure = name.partition("_")
    return f"{ {'queue': 'queue time'}.get(metric, metric.upper()) }, {figure}"


def quantities(latency: str) -> dict[str, Quantity]:
    """What a heat map can show."""
    return {
        "throughput": Quantity("output tokens/s", _field("output_tokens_per_s"), digits),
        "latency": Quantity(f"{latency_title(latency)}, seconds", Latency(latency).of, seconds),
        "goodput": Quantity("goodput, requests/s", _field("goodput_per_s"), digits),
        "requests": Quantity("requests/s served", _field("requests_per_s"), digits),
        "occupancy": Quantity("slot occupancy", _field("slot_occupancy"), percent),
        "padding": Quantity("padding, share of rows", _field("padding_fraction"), percent),
        "preemptions": Quantity("preemptions", _field("preemptions"), digits),
    }


def ran(result: Mapping[str, Any]) -> list[tuple[int, Row]]:
    """The points that have figures, each with its place in the sweep."""
    return [(at, row) for at, row in enumerate(result["runs"]) if row["error"] is None]


def label(row: Row, *, without: Sequence[str] = ()) -> str:
    """A point in words: what is set there."""
    return ", ".join(f"{name} {point_text(name, value)}" for name, value in row["point"].items() if name not in without)


def meets(row: Row, limits: Limits) -> bool:
    """Whether a run's p99 is within every limit, unsaturated and with all requests served (`simulator.slo`)."""
    return not limits or not Slo.of({f"{metric}_p99": limit for metric, limit in limits.items()}).misses(row)


def limits_text(limits: Limits) -> str:
    """The limits in words."""
    return ", ".join(f"p99 {metric.upper()} ≤ {seconds(limit)}" for metric, limit in limits.items())


def doubt(result: Mapping[str, Any]) -> str:
    """How many runs have steps beyond the range of the cost model, as a sentence; empty where there are none."""
    doubtful = sum(bool(row.get("extrapolated")) for _, row in ran(result))
    if not doubtful:
        return ""
    return f" {doubtful} of {len(ran(result))} runs have steps priced beyond the cost model's data."


def axes(result: Mapping[str, Any]) -> list[str]:
    """What was varied, more than one value each."""
    return [name for name, values in result["grid"].items() if len(values) > 1]


def empty(look: Look, sentence: str) -> Figure:
    """A figure that says what it lacks."""
    made = layout(look, height=140, showlegend=False)
    for name in ("xaxis", "yaxis"):
        made[name] = axis(look, visible=False)
    made["annotations"] = [
        {"text": sentence, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False,
         "font": {"size": 12, "color": look.muted}}
    ]  # fmt: skip
    return {"data": [], "layout": made}


def _field(name: str) -> Callable[[Row], float | None]:
    def of(row: Row) -> float | None:
        value = row.get(name)
        return None if value is None else float(value)

    return of
