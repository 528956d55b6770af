"""A plan's rows one by one, as arrays: what engines run and what cost models that need the spread look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .plan import IntArray, StepPlan
from .request import Request
from .steady import SteadyPrefix


@dataclass(slots=True)
class PlanRows:
    """The scheduled requests of one step, in running order; every array has shape ``(requests,)``.

    Attributes:
        slots: seat of each.
        computed: `num_computed_tokens` before the step.
        scheduled: `num_scheduled_tokens`.
        samples: whether the row's sampled token is kept (its tokens have caught up).
        requests: the requests themselves.
    """

    slots: IntArray
    computed: IntArray
    scheduled: IntArray
    samples: npt.NDArray[np.bool_]
    requests: list[Request]


def plan_rows(plan: StepPlan, steady: SteadyPrefix, *, slot_order: bool) -> PlanRows:
    """All rows of the newest plan: the steady ones, then those of its tail."""
    if not plan.tail:
        return _steady_rows(plan, steady, slot_order=slot_order)
    if not plan.num_steady:
        return _tail_rows(plan)
    first, second = _steady_rows(plan, steady, slot_order=slot_order), _tail_rows(plan)
    return PlanRows(
        np.concatenate((first.slots, second.slots)),
        np.concatenate((first.computed, second.computed)),
        np.concatenate((first.scheduled, second.scheduled)),
        np.concatenate((first.samples, second.samples)),
        first.requests + second.requests,
    )


def _steady_rows(plan: StepPlan, steady: SteadyPrefix, *, slot_order: bool) -> PlanRows:
    count = plan.num_steady
    slots, requests = steady.slots(), steady.requests()
    if slot_order:
        order = np.argsort(slots)
        slots, requests = slots[order], [requests[index] for index in order]
    computed = steady.offsets[slots]
    computed += plan.clock
    return PlanRows(slots, computed, steady.ones[:count], steady.trues[:count], requests)


def _tail_rows(plan: StepPlan) -> PlanRows:
    numbers = np.array([(row[0].slot, row[1], row[2], row[3]) for row in plan.tail], dtype=np.int64).reshape(-1, 4)
    requests = [row[0] for row in plan.tail]
    return PlanRows(numbers[:, 0], numbers[:, 1], numbers[:, 2], numbers[:, 3].astype(np.bool_), requests)
