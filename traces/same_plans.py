"""Do two runs make the same decisions? Step by step: numbers, rows, block tables; the first difference is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .schema import STEPS
from .trace import Trace

MEASURED = ("step", "t_start_s", "t_end_s", "device_s", "host_s", "padding_s")
DECIDED = tuple(name for name in STEPS.names if name not in MEASURED)
"""Columns of a step that follow from decisions alone, not from how long things took."""


@dataclass(frozen=True)
class Difference:
    """The first step in which two runs differ.

    Attributes:
        step: its number.
        what: column names, ``rows``, ``blocks`` or ``steps`` (one run has no such step).
        first, second: what each run has there.
    """

    step: int
    what: tuple[str, ...]
    first: dict[str, Any]
    second: dict[str, Any]

    def __str__(self) -> str:
        both = "\n".join(f"  {name}: {side}" for name, side in (("first ", self.first), ("second", self.second)))
        return f"step {self.step} differs in {', '.join(self.what)}:\n{both}"


def first_difference(first: Trace, second: Trace) -> Difference | None:
    """The first step whose plans differ; None when all are the same. Both traces need their plans recorded."""
    step = _first_in_columns(first, second)
    last = min(len(first.column("steps", "step")), len(second.column("steps", "step")))
    for number in range(last if step is None else step):
        if _plan(first, number) != _plan(second, number):
            return _describe(first, second, number)
    return None if step is None else _describe(first, second, step)


def _first_in_columns(first: Trace, second: Trace) -> int | None:
    a, b = (trace.columns("steps", DECIDED) for trace in (first, second))
    length = min(len(a["sampled"]), len(b["sampled"]))
    differs = np.zeros(length, dtype=np.bool_)
    for name in DECIDED:
        differs |= a[name][:length] != b[name][:length]
    places = np.flatnonzero(differs)
    if len(places):
        return int(places[0])
    return None if len(a["sampled"]) == len(b["sampled"]) else length


def _plan(trace: Trace, step: int) -> dict[str, Any]:
    return {"rows": trace.plan_at(step), "blocks": trace.block_table_at(step)}


def _describe(first: Trace, second: Trace, step: int) -> Difference:
    a, b = _whole(first, step), _whole(second, step)
    if a is None or b is None:
        return Difference(step, ("steps",), a or {"no such step": step}, b or {"no such step": step})
    names = tuple(name for name in a if a[name] != b[name])
    keep = (*names, "rows")
    return Difference(step, names, {name: a[name] for name in keep}, {name: b[name] for name in keep})


def _whole(trace: Trace, step: int) -> dict[str, Any] | None:
    columns = trace.columns("steps", DECIDED)
    if step >= len(columns["sampled"]):
        return None
    return {**{name: column[step].item() for name, column in columns.items()}, **_plan(trace, step)}
