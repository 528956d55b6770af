"""How near a simulation comes to a recorded run: every latency figure, throughput, and the state over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import ConfigError
from traces.metrics import spread, weighted_spread
from traces.quantiles import QuantileRange
from traces.record import caveat_of
from traces.trace import Trace
from traces.validation import STATES, write_validation
from traces.workload import Workload

from .measured import MeasuredRun, RunTimes, StateSeries, series_of, trace_times
from .reference import read_reference
from .run import make_load, run
from .validate_setup import system_of as system_of

Floats = npt.NDArray[np.float64]
Figures = Mapping[str, float]

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
"""The figures of which the worst error is named."""
SHIFTS = 21
"""Moments tried for the first arrival, where it is not recorded."""
ALL_LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "scheduled_to_first_s")


@dataclass(frozen=True)
class Validation:
    """A recorded run and its simulation.

    Attributes:
        result: all figures as JSON values: of each the measured one, the simulated one, and the error, which is
            simulated / measured - 1.
        trace: the simulated run.
    """

    result: dict[str, Any]
    trace: Trace


def validate(
    reference: str | Path,
    *,
    workload: Workload | None = None,
    benchmark: int | None = None,
    concurrency: int | None = None,
    cost: str | None = None,
    model: str | None = None,
    hardware: str | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Validation:
    """Simulate a recorded run and compare.

    Args:
        reference: see `simulator.reference`.
        workload: what was sent, where the recording does not say.
        benchmark: which one, from 1, of a result file that holds several.
        concurrency: so many clients that wait for their answers, where the recording does not say.
        cost: cost model, options after a colon; default: the operator tables that lie beside the recording.
        model: sheet in place of the one that the recording names.
        hardware: likewise.
        out: folder ``NAME.trace`` to record the simulated run into, and the comparison beside its tables.
        settings: of the scheduler, in place of the recorded ones; where none were recorded all those of `Setup`.

    Raises:
        UserError: a recording that cannot be read, or that says too little to be simulated.
    """
    measured = read_reference(reference, workload=workload, benchmark=benchmark)
    system = system_of(measured, cost, model, hardware, settings)
    if concurrency is not None and measured.aborts:
        raise ConfigError(f"requests of {reference} were given up; that is not simulated with --concurrency")
    clients = concurrency if concurrency is not None else measured.clients
    measured = replace(measured, clients=clients, notes=(*measured.notes, *_replaced(measured, settings)))
    load = make_load(measured.workload, concurrency=clients, think_s=measured.think_s, aborts=measured.aborts)
    meta = {"seed": 0, "load": {"concurrency": clients, "think_s": measured.think_s}, "reference": str(reference)}
    trace = run(system, measured.workload, load, out=out, meta=meta)
    result = compare_runs(measured, trace)
    if out is not None:
        write_validation(out, result)
    return Validation(result, trace)


def compare_runs(measured: MeasuredRun, trace: Trace) -> dict[str, Any]:
    """The figures of a measured run beside those of a simulated trace of the same requests."""
    simulated = trace_times(trace, planned=measured.planned)
    gaps = trace.columns("gaps", ["gap_s", "count"])
    ours = {**latencies(simulated), "itl_s": weighted_spread(gaps["gap_s"], gaps["count"])}
    theirs = _measured_figures(measured)
    figures = {name: _beside(theirs.get(name), ours[name], measured.ranges.get(name, {})) for name in ALL_LATENCIES}
    totals = measured.totals if measured.times is None else _totals(measured.times)
    series = None if measured.series is None else _series(measured.series, trace, measured.slack_s)
    return {
        "reference": str(measured.path),
        "name": measured.name,
        "measured_by": measured.by,
        "requests": len(measured.workload),
        "clients": measured.clients,
        "cost_model": {name: trace.meta["cost_model"][name] for name in ("name", "options")},
        "extrapolation": trace.meta.get("extrapolation"),
        "caveat": caveat_of(trace.meta["cost_model"]),
        "notes": [*measured.notes, *_slowdown_note(measured, trace), *_shift_note(series)],
        "not_recorded": _not_recorded(figures, series),
        "latency": figures,
        "run": _beside(totals, _totals(simulated), {}) or {},
        "series": series,
        "worst": _worst(figures),
    }


def _replaced(measured: MeasuredRun, given: Mapping[str, Any]) -> list[str]:
    """Recorded settings that the user gave another value: then it is no longer the recorded run."""
    recorded = measured.settings or {}
    return [
        f"{name} is {value} here; the recorded run had {recorded[name]}"
        for name, value in given.items()
        if name in recorded and recorded[name] != value
    ]


def _slowdown_note(measured: MeasuredRun, trace: Trace) -> list[str]:
    """By what the prices of a cost file were multiplied, and what the probe says of it."""
    told = trace.meta["cost_model"]
    slowdown, fitted_s = told["options"].get("slowdown", 1.0), told.get("fit", {}).get("probe_s")
    found = measured.probe_s / fitted_s if measured.probe_s and fitted_s else None
    if found is not None and math.isclose(slowdown, found):
        return (
            [] if math.isclose(found, 1.0) else [f"prices are those of the cost file times {found:.3f}, by the probe"]
        )
    if math.isclose(slowdown, 1.0):
        return []
    by_probe = "" if found is None else f"; by the probe it would be {found:.3f}"
    return [f"prices are those of the cost file times {slowdown:.3f}, as was asked for{by_probe}"]


def latencies(times: RunTimes) -> dict[str, dict[str, float] | None]:
    """Mean and percentiles of each latency, as `traces.metrics` defines them, and from planned to first token."""
    timed = (times.output_tokens >= 2) & ~times.cut
    decoding = (times.last - times.first) / np.maximum(times.output_tokens - 1, 1)
    return {
        "ttft_s": spread(times.first - times.arrival),
        "tpot_s": spread(np.where(timed, decoding, np.nan)),
        "e2e_s": spread(np.where(times.cut, np.nan, times.last - times.arrival)),
        "queue_s": spread(times.scheduled - times.arrival),
        "scheduled_to_first_s": spread(times.first - times.scheduled),
    }


def _measured_figures(measured: MeasuredRun) -> dict[str, Figures | None]:
    if measured.times is None:
        return dict(measured.figures)
    return {**latencies(measured.times), "itl_s": measured.itl_s}


def _totals(times: RunTimes) -> dict[str, float]:
    makespan_s = float(np.nanmax(times.last) - times.arrival.min())
    return {
        "makespan_s": makespan_s,
        "output_tokens_per_s": float(times.output_tokens.sum()) / makespan_s,
        "requests_per_s": int((~times.cut).sum()) / makespan_s,
    }


def _beside(
    measured: Figures | None, simulated: Figures | None, ranges: Mapping[str, QuantileRange]
) -> dict[str, Any] | None:
    """Figure -> measured, simulated and error; None where one side has none, and no error of what was 0.

    A figure of which bounds alone are known has no error, but says whether the simulated one lies between them.
    """
    if simulated is None or not (measured or ranges):
        return None
    exact = {
        name: {
            "measured": value,
            "simulated": simulated[name],
            "error": simulated[name] / value - 1 if value else None,
        }
        for name, value in (measured or {}).items()
        if name in simulated
    }
    return {**exact, **{name: _between(bounds, simulated[name]) for name, bounds in ranges.items()}}


def _between(bounds: QuantileRange, value: float) -> dict[str, Any]:
    return {
        "measured": None,
        "low": bounds.low_s,
        "high": bounds.high_s if np.isfinite(bounds.high_s) else None,
        "simulated": value,
        "error": None,
        "inside": bounds.low_s <= value <= bounds.high_s,
    }


def _not_recorded(figures: Mapping[str, Any], series: Mapping[str, Any] | None) -> list[str]:
    states = STATES if series is None else [name for name in STATES if series["measured"][name] is None]
    return [*(name for name, entries in figures.items() if entries is None), *states]


def _worst(figures: Mapping[str, Any]) -> dict[str, Any] | None:
    errors = {
        f"{latency} {name}": entry["error"]
        for latency in LATENCIES
        for name, entry in (figures[latency] or {}).items()
        if entry["error"] is not None
    }
    if not errors:
        return None
    name = max(errors, key=lambda figure: abs(errors[figure]))
    return {"figure": name, "error": errors[name]}


def _series(measured: StateSeries, trace: Trace, slack_s: float) -> dict[str, Any]:
    """Both runs' states at the measured times, and the root of the mean squared difference; None: not recorded.

    Where the first arrival is only known to lie within `slack_s` before the series' second 0, the moment is taken at
    which running and waiting requests agree best.
    """
    zero_s = float(trace.column("requests", "arrival_s").min())
    shift_s = (
        min(np.linspace(0.0, slack_s, SHIFTS), key=lambda s: _apart(measured, trace, zero_s, s)) if slack_s else 0.0
    )
    t_s = measured.t_s + shift_s
    simulated = series_of(trace, t_s, zero_s)
    pairs = {name: (getattr(measured, name), getattr(simulated, name)) for name in STATES}
    return {
        "shift_s": float(shift_s),
        "rmse": {name: _known(np.sqrt(np.mean((ours - theirs) ** 2))) for name, (theirs, ours) in pairs.items()},
        "mean": {name: _known(theirs.mean()) for name, (theirs, _) in pairs.items()},
        "t_s": t_s.tolist(),
        "measured": {name: _whole(theirs) for name, (theirs, _) in pairs.items()},
        "simulated": {name: ours.tolist() for name, (_, ours) in pairs.items()},
    }


def _apart(measured: StateSeries, trace: Trace, zero_s: float, shift_s: float) -> float:
    simulated = series_of(trace, measured.t_s + shift_s, zero_s)
    pairs = ((measured.running, simulated.running), (measured.waiting, simulated.waiting))
    return float(np.nansum([np.nansum((ours - theirs) ** 2) for theirs, ours in pairs]))


def _shift_note(series: Mapping[str, Any] | None) -> list[str]:
    if series is None or not series["shift_s"]:
        return []
    return [
        f"when the first request came is not recorded: curves are set {series['shift_s']:.3g} s later than their first "
        "sample, where they agree best"
    ]


def _known(value: np.floating[Any]) -> float | None:
    return float(value) if np.isfinite(value) else None


def _whole(values: Floats) -> list[float] | None:
    """A server that does not tell a state tells it at no time."""
    return None if np.isnan(values).any() else values.tolist()
