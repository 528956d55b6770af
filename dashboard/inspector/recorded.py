"""A step of a recorded run laid open: its rows and blocks come from the plan log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dashboard.data.run import Run
from scheduler.batch import UNKNOWN_TOKEN, BatchRequest
from scheduler.errors import InputError
from traces.schema import PADDING
from traces.trace import Trace

from .step import StepFacts

MOST_TOKENS_HELD = 32_000_000
"""Seats x longest request: the builder keeps a token id for each, 4 bytes, so 128 MB at most."""


class Row(NamedTuple):
    """A request's part of a step."""

    request: int
    slot: int
    computed: int
    scheduled: int
    samples: bool


def rows_of_step(run: Run, step: int) -> list[Row]:
    """The scheduled rows of a step, in running order; raises InputError where the run does not hold them."""
    trace = _trace_of(run)
    try:
        return [Row(*row) for row in trace.plan_at(step)]
    except LookupError as error:
        raise _no_plan(run, step) from error


def burning_rows(run: Run, step: int) -> list[Row]:
    """Rows that have ended but burn on with their batch, in slot order: each computes its last token again."""
    column = {name: run.column("spans", name) for name in ("request", "slot", "kind", "first_step", "last_step")}
    during = (column["first_step"] <= step) & (step <= column["last_step"])
    found = np.flatnonzero(during & (column["kind"] == PADDING))
    rows = [_burning(run, int(column["request"][at]), int(column["slot"][at])) for at in found]
    return sorted(rows, key=lambda row: row.slot)


def facts_of_step(run: Run, step: int) -> StepFacts:
    """A step of a recorded run.

    Raises:
        InputError: the run keeps no plans, holds no such step, or the step is too large to be laid open.
    """
    rows = rows_of_step(run, step)
    if not rows:
        raise InputError(f"step {step:,} of {run.name} schedules nobody; there is no batch to show")
    config: Mapping[str, Any] = run.meta.get("config", {})
    padded = run.meta.get("layout") == "padded"
    burning, notes = _held(run, step, burning_rows(run, step)) if padded else ([], [])
    _refuse_huge(run, rows + burning)
    pads = _pads(run, rows + burning) if padded and _pads_left(run) else {}
    requests = _requests(run, step, rows, pads)
    return StepFacts(
        title=f"Step {step:,} of {run.name}",
        requests=tuple(requests),
        slots=tuple(row.slot for row in rows),
        samples=tuple(row.samples for row in rows),
        block_size=int(config.get("block_size", 16)),
        num_slots=max(run.slots_total, len(rows)),
        burning=tuple(_requests(run, step, burning, pads)),
        layout="padded" if padded else "ragged",
        padding_side=config.get("padding_side", "left"),
        graph_rows=_graph_rows(run, step),
        notes=tuple(notes),
    )


def _requests(run: Run, step: int, rows: list[Row], pads: Mapping[int, int]) -> list[BatchRequest]:
    names, tables = run.names(), _trace_of(run).block_table_at(step)
    return [
        BatchRequest(
            name=names.get(row.request, str(row.request)),
            token_ids=(UNKNOWN_TOKEN,) * (row.computed + row.scheduled),
            computed=row.computed,
            scheduled=row.scheduled,
            block_table=tables[row.request],
            pad=pads.get(row.request, 0),
        )
        for row in rows
    ]


def _burning(run: Run, request: int, slot: int) -> Row:
    at = _place(run, request)
    tokens = int(run.column("requests", "prompt_tokens")[at]) + int(run.column("requests", "output_tokens")[at])
    return Row(request, slot, tokens - 1, 1, False)


def _held(run: Run, step: int, burning: list[Row]) -> tuple[list[Row], list[str]]:
    """Those of the burning rows whose blocks the log still knows, and a sentence on the others."""
    tables = _trace_of(run).block_table_at(step)
    held = [row for row in burning if row.request in tables]
    lost = len(burning) - len(held)
    return held, [f"{lost} more rows burn on in this step; their blocks are not in the log."] if lost else []


def _pads(run: Run, rows: list[Row]) -> dict[int, int]:
    """Left padding of each row: up to the longest prompt of the batch, whose rows are all here until it ends."""
    prompts = {row.request: int(run.column("requests", "prompt_tokens")[_place(run, row.request)]) for row in rows}
    longest = max(prompts.values())
    return {request: longest - prompt for request, prompt in prompts.items()}


def _pads_left(run: Run) -> bool:
    return run.meta.get("policy") == "static" and run.meta.get("config", {}).get("padding_side", "left") == "left"


def _graph_rows(run: Run, step: int) -> int:
    at = int(np.searchsorted(run.column("steps", "step"), step))
    return int(run.column("steps", "padding_graph")[at])


def _place(run: Run, request: int) -> int:
    return int(np.searchsorted(run.column("requests", "request"), request))


def _refuse_huge(run: Run, rows: list[Row]) -> None:
    longest = max(row.computed + row.scheduled for row in rows)
    if longest * max(run.slots_total, len(rows)) > MOST_TOKENS_HELD:
        raise InputError(
            f"{run.slots_total:,} seats with requests of {longest:,} tokens are too many to lay open; "
            f"expected seats x tokens <= {MOST_TOKENS_HELD:,}"
        )


def _trace_of(run: Run) -> Trace:
    if run.trace is None:
        raise InputError(f"{run.name} is live and keeps no plans here; inspect it from its recorded trace")
    return run.trace


def _no_plan(run: Run, step: int) -> InputError:
    if not run.meta.get("plans"):
        return InputError(
            f"{run.name} was recorded without plans; its steps can be rebuilt when it is run with --plans"
        )
    steps = run.column("steps", "step")
    held = f"expected {int(steps[0]):,} to {int(steps[-1]):,}" if len(steps) else "it holds none"
    return InputError(f"{run.name} holds no step {step:,}; {held}")
