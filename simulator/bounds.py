"""What bounds a run: the time of its steps priced again part by part, and the rules that name the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.plan import StepShape
from traces.metrics import step_weights
from traces.record import record_of
from traces.trace import Trace

from .costs import CostModel, make_cost_model
from .costs.fit_terms import SHAPE_COLUMNS as OF_SHAPE
from .costs.roofline import RooflineCost

MOST_PRICED = 2000
"""Steps that are priced again; of a longer run evenly spaced ones stand for all."""
IDLE, WAITING, PADDED, DOMINANT, FULL = 0.2, 0.1, 0.25, 0.5, 0.9
"""Shares from which on: the server counts as idle, its queue as waiting, its work as padding, a part of the device's
time as all that matters, and slots or blocks as full. Judgement, not measurement: each share is in the evidence."""
SHAPE_COLUMNS = tuple(OF_SHAPE.values())
"""Columns of `steps` from which a step is priced again, in the order of `StepShape`."""
FREE = 1e9
"""Times as fast: what a device of so much arithmetic or bandwidth spends on it is nothing beside the rest."""
BOUNDS: dict[str, str] = {
    "arrivals": "arrivals: the server is idle part of the time",
    "padding": "padding: much of the work is rows that serve nobody",
    "host": "host time: the device waits while the host plans",
    "blocks": "KV capacity: requests wait, or lose their seat, for want of blocks",
    "seqs": "slots: requests wait for a seat while the device could carry more",
    "tokens": "the token budget: prompts wait although the device could compute more a step",
    "batch-closed": "the policy: requests wait for a batch that takes nobody in",
    "compute": "device compute: the matrix products run at the device's arithmetic rate",
    "attention": "attention: most device time reads the KV cache or attends over long contexts",
    "weights": "memory bandwidth: each step streams the weights (or pays its fixed cost) for few rows",
    "device": "the device: its steps take most of the time, and no cost model is at hand to say on what",
}
"""Every bound that a run can have, in words."""


@dataclass(frozen=True)
class Diagnosis:
    """What bounds a run, and the figures that say so; shares are fractions of the run's time."""

    bound: str
    evidence: dict[str, Any]


def diagnose(trace: Trace, cost_model: CostModel | None, record: Mapping[str, Any] | None = None) -> Diagnosis:
    """Name what bounds a run.

    Args:
        trace: the run.
        cost_model: prices its steps again; None (a measured run): device and host time stay whole.
        record: the run's record, where it is known already.
    """
    record = record_of(trace) if record is None else record
    evidence = {
        "record": record,
        **_queue_shares(trace, record),
        "parts": part_shares(trace, cost_model),
        "streams": bool(trace.meta.get("streams", True)),
    }
    return Diagnosis(_bound(evidence), evidence)


def _queue_shares(trace: Trace, record: Mapping[str, Any]) -> dict[str, Any]:
    names = ["t_start_s", "t_end_s", "blocks_used", "blocks_total", "running", "computed_tokens"]
    steps = trace.columns("steps", names)
    weights = step_weights(steps["t_start_s"], steps["t_end_s"])
    busy_s, makespan_s = float(weights.sum()), float(record["makespan_s"] or 0.0)
    waits = {name: _part(seconds, makespan_s) for name, seconds in record["wait_s"].items()}
    full = (steps["blocks_used"] >= FULL * steps["blocks_total"]).astype(float)
    return {
        "idle": max(0.0, 1 - _part(busy_s, makespan_s)),
        "waiting": waits,
        "padding": _part(record["padding_s"], busy_s),
        "blocks_full": _part(float((full * weights).sum()), busy_s),
        "mean_running": _part(float((steps["running"] * weights).sum()), busy_s),
        "mean_rows": float(steps["computed_tokens"].mean()) if busy_s else 0.0,
    }


def _bound(evidence: Mapping[str, Any]) -> str:
    """The rules, first that holds. They ask what would have to change for the run to go better, nearest cause first."""
    parts, waiting = evidence["parts"], evidence["waiting"]
    reason: str = max(waiting, key=lambda name: float(waiting[name]))
    waits = sum(waiting.values()) >= WAITING
    if evidence["padding"] >= PADDED:
        return "padding"
    if evidence["record"]["preemptions"] and evidence["blocks_full"] >= max(WAITING, waiting[reason]):
        return "blocks"  # the pool is full for longer than anything else keeps the queue
    if waits and reason == "blocks":
        return "blocks"
    if not waits and evidence["idle"] >= IDLE:
        return "arrivals"
    if parts["host"] >= DOMINANT:
        return "host"
    grows = {name: parts[name] for name in ("compute", "attention")}
    if waits and sum(grows.values()) < DOMINANT:
        return reason  # a fuller batch would cost little more: what keeps requests out is the bound
    if waits:
        return max(grows, key=lambda name: grows[name])
    if not priced(parts):
        return "device"
    return max(("compute", "attention", "weights", "host"), key=lambda name: parts[name])


def priced(parts: Mapping[str, float]) -> bool:
    """Whether a cost model has split the device's time."""
    return any(parts[name] for name in ("compute", "attention", "weights"))


def part_shares(trace: Trace, cost_model: CostModel | None) -> dict[str, float]:
    """Shares of the steps' time (device and host): ``compute``, ``attention``, ``weights``, ``host``, ``other``.

    With a roofline model the matrix products are split by pricing them again on a device of twice the arithmetic and
    on one of twice the bandwidth: what each would save, doubled, is that part's. With other models what a step of one
    row costs counts as ``weights`` and the rest of it as ``compute``. Without a model all device time is ``other``.
    """
    if cost_model is None:
        columns = trace.columns("steps", ["device_s", "host_s"])
        return _shares({"other": float(columns["device_s"].sum()), "host": float(columns["host_s"].sum())})
    if isinstance(cost_model, RooflineCost):
        return _shares(_roofline_parts(_sampled(trace), cost_model))
    return _shares(_generic_parts(_sampled(trace), cost_model))


def step_shapes(columns: Mapping[str, npt.NDArray[Any]], layout: Any) -> list[StepShape]:
    """Shapes of recorded steps, to price them again.

    Args:
        columns: `SHAPE_COLUMNS`, each ``(steps,)``.
        layout: the run's, from its meta.
    """
    rows = np.stack([columns[name].astype(np.int64) for name in SHAPE_COLUMNS], axis=1)
    return [StepShape(layout, *row) for row in rows.tolist()]


def roofs(model: RooflineCost) -> tuple[CostModel, CostModel]:
    """The same model where arithmetic takes no time, and where moving bytes to and from memory takes none.

    What the first prices is the memory roof, what the second prices the compute roof; each with the fixed times of
    kernels and of communication.
    """
    return _scaled(model, arithmetic=FREE), _scaled(model, memory=FREE)


def _sampled(trace: Trace) -> list[StepShape]:
    """The work of steps; evenly spaced ones of a long run."""
    columns = trace.columns("steps", list(SHAPE_COLUMNS))
    steps = len(columns["rows"])
    chosen = np.arange(steps) if steps <= MOST_PRICED else np.linspace(0, steps - 1, MOST_PRICED).round().astype(int)
    return step_shapes({name: column[chosen] for name, column in columns.items()}, trace.meta["layout"])


def _roofline_parts(work: Sequence[StepShape], model: RooflineCost) -> dict[str, float]:
    faster, wider = _scaled(model, arithmetic=2.0), _scaled(model, memory=2.0)
    totals = {"compute": 0.0, "attention": 0.0, "weights": 0.0, "host": 0.0, "other": 0.0}
    for shape in work:
        parts = model.breakdown(shape)
        products = parts["gemm"] + parts["lm_head"]
        compute = _saved(products, faster.breakdown(shape))
        weights = _saved(products, wider.breakdown(shape))
        if compute + weights > products:
            compute, weights = (part * products / (compute + weights) for part in (compute, weights))
        totals["compute"] += compute
        totals["weights"] += weights
        totals["attention"] += parts["attention"]
        totals["host"] += parts["host"]
        totals["other"] += sum(parts.values()) - parts["attention"] - parts["host"] - compute - weights
    return totals


def _scaled(model: RooflineCost, *, arithmetic: float = 1.0, memory: float = 1.0) -> CostModel:
    """The same model on a device of so many times the arithmetic and the memory bandwidth."""
    sheet = model.hardware
    assert sheet is not None
    hardware = replace(
        sheet,
        bf16_flops=arithmetic * sheet.bf16_flops,
        fp8_flops=None if sheet.fp8_flops is None else arithmetic * sheet.fp8_flops,
        int8_ops=None if sheet.int8_ops is None else arithmetic * sheet.int8_ops,
        memory_bandwidth=memory * sheet.memory_bandwidth,
    )
    return make_cost_model(
        model.name, model=model.model, hardware=hardware, tensor_parallel=model.tensor_parallel, **model.options()
    )


def _saved(products: float, parts: Mapping[str, float]) -> float:
    """Twice what a device of twice something saves: the seconds that this something took."""
    return max(0.0, 2 * (products - parts["gemm"] - parts["lm_head"]))


def _generic_parts(work: Sequence[StepShape], model: CostModel) -> dict[str, float]:
    alone = model.step_cost(StepShape(work[0].layout, 1, 1, 1, 1, 1)).device_s if work else 0.0
    totals = {"compute": 0.0, "attention": 0.0, "weights": 0.0, "host": 0.0, "other": 0.0}
    for shape in work:
        cost = model.step_cost(shape)
        attention = cost.breakdown().get("attention", 0.0)
        weights = min(alone, cost.device_s - attention)
        totals["attention"] += attention
        totals["weights"] += weights
        totals["compute"] += cost.device_s - attention - weights
        totals["host"] += cost.host_s
    return totals


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    whole = sum(seconds.values())
    return {name: _part(seconds.get(name, 0.0), whole) for name in ("compute", "attention", "weights", "host", "other")}


def _part(amount: float, whole: float) -> float:
    return float(amount / whole) if whole else 0.0
