"""How near a simulation comes to a recorded run: every latency figure, throughput, and the state over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError
from traces.metrics import spread, weighted_spread
from traces.trace import Trace

from .costs import CostModel, make_cost_model
from .costs.base import split_options
from .devices import sheet_of_device
from .hardware import HardwareSheet, get_hardware
from .models import ModelSheet, get_model
from .reference import MeasuredRun, RunTimes, StateSeries, read_reference, series_of, trace_times
from .run import make_load, run
from .setup import Setup, System

Floats = npt.NDArray[np.float64]
Figures = dict[str, float]

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
"""The figures of which the worst error is named."""


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
    cost: str | None = None,
    model: str | None = None,
    hardware: str | None = None,
    out: str | Path | None = None,
) -> Validation:
    """Simulate a recorded run and compare.

    Args:
        reference: folder of a served vLLM run, or a measured trace (see `simulator.reference`).
        cost: cost model, options after a colon; default: the operator tables that lie in the folder.
        model: sheet in place of the one that the recording names.
        hardware: likewise.
        out: folder ``NAME.trace`` to record the simulated run into.

    Raises:
        UserError: a recording that cannot be read, or that says too little to be simulated.
    """
    measured = read_reference(reference)
    system = system_of(measured, cost, model, hardware)
    meta = {"seed": 0, "load": {"concurrency": None, "think_s": 0.0}, "reference": str(reference)}
    trace = run(system, measured.workload, make_load(measured.workload), out=out, meta=meta)
    return Validation(compare_runs(measured, trace), trace)


def compare_runs(measured: MeasuredRun, trace: Trace) -> dict[str, Any]:
    """The figures of a measured run beside those of a simulated trace of the same requests."""
    simulated = trace_times(trace, planned=measured.planned)
    ours, theirs = latencies(simulated), latencies(measured.times)
    gaps = trace.columns("gaps", ["gap_s", "count"])
    ours["itl_s"], theirs["itl_s"] = weighted_spread(gaps["gap_s"], gaps["count"]), measured.itl_s
    figures = {name: _beside(theirs[name], ours[name]) for name in theirs}
    totals = _beside(_totals(measured.times), _totals(simulated))
    return {
        "reference": str(measured.path),
        "name": measured.name,
        "requests": len(measured.workload),
        "cost_model": {name: trace.meta["cost_model"][name] for name in ("name", "options")},
        "extrapolation": trace.meta.get("extrapolation"),
        "latency": figures,
        "run": totals,
        "series": None if measured.series is None else _series(measured.series, trace),
        "worst": _worst(figures),
    }


def latencies(times: RunTimes) -> dict[str, Figures | None]:
    """Mean and percentiles of each latency, as `traces.metrics` defines them, and from planned to first token."""
    several = times.output_tokens >= 2
    decoding = (times.last - times.first) / np.maximum(times.output_tokens - 1, 1)
    return {
        "ttft_s": spread(times.first - times.arrival),
        "tpot_s": spread(np.where(several, decoding, np.nan)),
        "e2e_s": spread(times.last - times.arrival),
        "queue_s": spread(times.scheduled - times.arrival),
        "scheduled_to_first_s": spread(times.first - times.scheduled),
    }


def _totals(times: RunTimes) -> Figures:
    makespan_s = float(np.nanmax(times.last) - times.arrival.min())
    return {
        "makespan_s": makespan_s,
        "output_tokens_per_s": float(times.output_tokens.sum()) / makespan_s,
        "requests_per_s": len(times.arrival) / makespan_s,
    }


def _beside(measured: Figures | None, simulated: Figures | None) -> dict[str, Any] | None:
    """Figure -> measured, simulated and error; None where one side has none, and no error of what was 0."""
    if measured is None or simulated is None:
        return None
    return {
        name: {
            "measured": value,
            "simulated": simulated[name],
            "error": simulated[name] / value - 1 if value else None,
        }
        for name, value in measured.items()
    }


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


def _series(measured: StateSeries, trace: Trace) -> dict[str, Any]:
    """Both runs' states at the measured times, and the root of the mean squared difference."""
    zero_s = float(trace.column("requests", "arrival_s").min())
    simulated = series_of(trace, measured.t_s, zero_s)
    names = ("running", "waiting", "kv_percent")
    pairs = {name: (getattr(measured, name), getattr(simulated, name)) for name in names}
    return {
        "rmse": {name: float(np.sqrt(np.mean((ours - theirs) ** 2))) for name, (theirs, ours) in pairs.items()},
        "mean": {name: float(theirs.mean()) for name, (theirs, _) in pairs.items()},
        "t_s": measured.t_s.tolist(),
        "measured": {name: theirs.tolist() for name, (theirs, _) in pairs.items()},
        "simulated": {name: ours.tolist() for name, (_, ours) in pairs.items()},
    }


def system_of(
    measured: MeasuredRun, cost: str | None = None, model: str | None = None, hardware: str | None = None
) -> System:
    """What to simulate for a recorded run; the arguments are those of `validate`."""
    config = SchedulerConfig(**measured.settings)
    sheet, card = _model(measured, model), _hardware(measured, hardware)
    cost_model = _cost_model(measured, cost, sheet, card)
    setup = Setup(
        model=model or measured.model,
        hardware=hardware or (card.name if card else str(measured.hardware)),
        cost=cost or "profile",
        tensor_parallel=measured.tensor_parallel,
        scheduler=measured.settings,
    )
    return System(config, cost_model, None, setup)


def _cost_model(
    measured: MeasuredRun, cost: str | None, model: ModelSheet | None, hardware: HardwareSheet | None
) -> CostModel:
    setup: dict[str, Any] = {"model": model, "hardware": hardware, "tensor_parallel": measured.tensor_parallel}
    if cost is not None:
        name, options = split_options(cost)
        return make_cost_model(name, **setup, **options)
    if measured.cost is None:
        raise ConfigError(f"{measured.path} holds no operator tables; give the cost model to validate")
    return make_cost_model("profile", **setup, **measured.cost)


def _model(measured: MeasuredRun, given: str | None) -> ModelSheet | None:
    """The sheet asked for, or that of the recorded name where there is one; cost models that need one say so."""
    if given is not None:
        return get_model(given)
    try:
        return get_model(measured.model)
    except ConfigError:
        return None


def _hardware(measured: MeasuredRun, given: str | None) -> HardwareSheet | None:
    if given is not None:
        return get_hardware(given)
    return None if measured.hardware is None else sheet_of_device(measured.hardware)
