"""The figures of one run, simulated or measured: the metrics of its trace, and whether arrivals outran service."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from scheduler.plan import WAIT_REASONS

from .store import Columns
from .trace import Trace

FIGURES = (
    "policy", "layout", "requests", "finished", "steps", "makespan_s", "ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s",
    "requests_per_s", "output_tokens_per_s", "slot_occupancy", "padding_fraction", "padding_s", "preemptions",
    "recomputed_tokens", "cached_tokens", "saturated", "wall_s",
)  # fmt: skip
"""Fields of a run's record that every command shows, in this order; more may follow."""


def record_of(trace: Trace, *, wall_s: float | None = None, slo: dict[str, float] | None = None) -> dict[str, Any]:
    """A run's record, as JSON can hold it: the fields of `FIGURES` first."""
    summary = trace.summary(slo)
    known = {
        "policy": trace.meta["policy"],
        "layout": trace.meta["layout"],
        **summary,
        "saturated": saturated(trace),
        "wall_s": wall_s,
        "wait_s": wait_seconds(trace),
        "extrapolated": trace.meta.get("extrapolation"),
        "caveat": caveat_of(trace.meta.get("cost_model")),
        "skipped": trace.meta.get("skipped", {}),
    }
    return {name: known[name] for name in (*FIGURES, *(name for name in known if name not in FIGURES))}


def caveat_of(cost_model: object) -> str | None:
    """What is uncertain about every price of a simulated run."""
    found = cost_model.get("caveat") if isinstance(cost_model, Mapping) else None
    return None if found is None else str(found)


def saturated(trace: Trace) -> bool | None:
    """Whether arrivals outran service: the queue grew (`_queue_grew`), or the work took long to drain (`_overran`).

    None where there is no arrival rate: all came at once, or clients waited for answers.
    """
    arrivals = trace.column("requests", "arrival_s")
    if len(arrivals) < 2 or trace.meta.get("load", {}).get("concurrency") is not None:
        return None
    first_s, last_s = float(arrivals.min()), float(arrivals.max())
    steps = trace.columns("steps", ["t_start_s", "t_end_s", "running", "waiting"])
    if last_s <= first_s:
        return None
    if not len(steps["t_end_s"]):
        return False
    longest = int(trace.column("requests", "output_tokens").max())
    return _queue_grew(steps, last_s, len(arrivals)) or _overran(steps, last_s - first_s, last_s, longest)


def _queue_grew(steps: Columns, last_s: float, arrivals: int) -> bool:
    """At the last arrival more requests waited than ran on average so far, and more than the root of their number.

    A queue that falls behind grows with the number of arrivals; one that just keeps up wanders by about the root of it
    (one slot under Poisson arrivals at 90% load leaves a whole batch waiting every other time).
    """
    during = steps["t_start_s"] <= last_s
    if not during.any():
        return False
    spans = (steps["t_end_s"] - steps["t_start_s"])[during]
    weights = spans if spans.any() else np.ones_like(spans)  # steps of a cost model may take no time
    running = float(np.average(steps["running"][during], weights=weights))
    return bool(steps["waiting"][during][-1] > max(running, math.sqrt(arrivals)))


def _overran(steps: Columns, span_s: float, last_s: float, longest: int) -> bool:
    """After the last arrival it took over half as long again as all arrivals, and over three times what the longest
    output takes alone: a backlog that sits in a large batch shows in no queue.
    """
    alone_s = longest * float((steps["t_end_s"] - steps["t_start_s"]).min())
    return float(steps["t_end_s"][-1]) - last_s > max(span_s / 2, 3 * alone_s)


def wait_seconds(trace: Trace) -> dict[str, float]:
    """Seconds in which the head of the queue waited, by reason."""
    steps = trace.columns("steps", ["t_start_s", "t_end_s", "wait_reason"])
    spans = steps["t_end_s"] - steps["t_start_s"]
    totals = np.bincount(steps["wait_reason"], weights=spans, minlength=len(WAIT_REASONS))
    return {name: float(total) for name, total in zip(WAIT_REASONS[1:], totals[1:], strict=True)}
