"""What a run that was measured is, to a comparison: its requests, its times, and what it takes to simulate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.quantiles import QuantileRange
from traces.schema import FINISH_REASONS
from traces.trace import Trace
from traces.workload import Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_CUT = [FINISH_REASONS.index(name) for name in ("abort", "error")]


@dataclass(frozen=True)
class RunTimes:
    """When things happened to each request, ``(requests,)`` seconds after the first arrival; nan: never.

    `scheduled` is the moment at which it was planned to run, not that at which the device began. `cut` says which
    requests were ended from outside: these have no TPOT and no E2E (see `traces.metrics`).
    """

    arrival: Floats
    scheduled: Floats
    first: Floats
    last: Floats
    output_tokens: Ints
    cut: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StateSeries:
    """How full the server was, ``(samples,)`` each; times are seconds after the first arrival; nan: not recorded."""

    t_s: Floats
    running: Floats
    waiting: Floats
    kv_percent: Floats


@dataclass(frozen=True)
class MeasuredRun:
    """A run that was measured, and what it takes to simulate it.

    Attributes:
        path, name: where it is, and what to call it.
        workload: its requests; they arrive when the engine took them in, or the client sent them.
        settings: of the scheduler; None: not recorded.
        model, hardware: as the recording names them; None: it does not.
        tensor_parallel: devices that shared each layer.
        times: of its requests, in the workload's order; None: not recorded.
        itl_s: gaps between tokens: mean and percentiles; None: not recorded.
        series: None: not recorded.
        cost: options of the ``profile`` cost model that came with it; None: none did.
        planned: `times` tell when requests were planned (else when their first step began).
        by: what measured it.
        clients: so many waited for their answers instead of keeping the workload's times; None: none did.
        think_s: seconds that such a client waited before it asked again.
        aborts: ``(seconds, request)`` of those that gave up.
        figures: latency -> figure -> seconds, where `times` is None.
        ranges: latency -> figure -> the bounds between which it lies, where a server counts in buckets.
        totals: of the run, where they are not those of `times`.
        slack_s: the first arrival was up to so many seconds before the series' second 0.
        probe_s: what the probe took beside its steps on average (`traces.probes`); None: none ran.
        notes: what one should know of the comparison, a sentence each.
    """

    path: Path
    name: str
    workload: Workload
    settings: Mapping[str, Any] | None
    model: str | None
    hardware: str | None
    tensor_parallel: int
    times: RunTimes | None
    itl_s: dict[str, float] | None
    series: StateSeries | None
    cost: Mapping[str, Any] | None
    planned: bool
    by: str
    clients: int | None = None
    think_s: float = 0.0
    aborts: tuple[tuple[float, int], ...] = ()
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ranges: Mapping[str, Mapping[str, QuantileRange]] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    slack_s: float = 0.0
    probe_s: float | None = None
    notes: tuple[str, ...] = ()


def series_of(trace: Trace, t_s: Floats, zero_s: float) -> StateSeries:
    """The state of a trace at given times after `zero_s`: as the last step that had ended by then left it."""
    names = ["t_end_s", "running", "waiting", "blocks_used", "blocks_total"]
    steps = trace.columns("steps", names)
    at = np.searchsorted(steps["t_end_s"] - zero_s, t_s, side="right") - 1
    seen = np.maximum(at, 0)

    def column(values: npt.NDArray[Any]) -> Floats:
        return np.where(at < 0, 0.0, values[seen].astype(np.float64))

    full = 100.0 * steps["blocks_used"] / np.maximum(steps["blocks_total"], 1)
    return StateSeries(t_s, column(steps["running"]), column(steps["waiting"]), column(full))


def trace_times(trace: Trace, *, planned: bool) -> RunTimes:
    """Of a trace's requests, after its first arrival; `planned`: with the moments at which requests were planned."""
    columns = trace.columns("requests")
    columns = {name: column[np.argsort(columns["request"])] for name, column in columns.items()}
    zero_s = float(columns["arrival_s"].min())
    scheduled = columns["scheduled_s"]
    if planned:
        scheduled = np.maximum(_planned(trace, scheduled), columns["arrival_s"])
    return RunTimes(
        arrival=columns["arrival_s"] - zero_s,
        scheduled=scheduled - zero_s,
        first=columns["first_token_s"] - zero_s,
        last=columns["finished_s"] - zero_s,
        output_tokens=columns["output_tokens"].astype(np.int64),
        cut=np.isin(columns["finish_reason"], _CUT),
    )


def _planned(trace: Trace, started_s: Floats) -> Floats:
    """When steps that began at given times were planned.

    An engine that plans ahead plans a step when the results of the second last one are in; where the device waited, the
    host's time before the start. Else a step is planned when it begins.
    """
    steps = trace.columns("steps", ["t_start_s", "t_end_s", "host_s"])
    start, end = steps["t_start_s"], steps["t_end_s"]
    plan = start
    if trace.meta["config"]["async_scheduling"]:
        before = np.concatenate(([-np.inf], end[:-1]))
        second = np.concatenate(([-np.inf, -np.inf], end[:-2]))[: len(end)]
        plan = np.where(start > before, start - steps["host_s"], second)
    which = np.searchsorted(start, started_s)
    return np.where(np.isnan(started_s), np.nan, plan[np.minimum(which, len(plan) - 1)])
