"""A tiny run step by step: who sits where, what each seat computes, and what is padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard.data.run import Run, TraceRun
from dashboard.inspector.recorded import Row, burning_rows, rows_of_step
from scheduler.batch import BoolArray, PaddingSide
from simulator.run import simulate
from traces.schema import QUEUED
from traces.workload import Workload


@dataclass(frozen=True)
class Seat:
    """A seat in a step.

    Attributes:
        slot: its number.
        name: of the request in it.
        kind: ``prefill``, ``decode``, ``ended`` (the row burns on) or ``held`` (it sits, but computes nothing).
        tokens: useful ones that it computes.
        padding: cells that it computes beside them.
    """

    slot: int
    name: str
    kind: str
    tokens: int
    padding: int


@dataclass(frozen=True)
class Frame:
    """A step: its seats, its longest row, rows computed, those of them that are tokens, rows to the vocabulary."""

    seats: tuple[Seat, ...]
    cols: int
    computed: int
    useful: int
    logits_rows: int
    waiting: tuple[str, ...]

    def seat_of(self, name: str) -> Seat | None:
        """Where a request sits in this step."""
        return next((seat for seat in self.seats if seat.name == name), None)


@dataclass(frozen=True)
class Film:
    """All steps of a run."""

    frames: tuple[Frame, ...]
    slots: int
    layout: str
    padding_side: PaddingSide

    @property
    def computed(self) -> int:
        """Rows computed in all."""
        return sum(frame.computed for frame in self.frames)

    @property
    def useful(self) -> int:
        """Those of them that are tokens of requests."""
        return sum(frame.useful for frame in self.frames)

    def steps_of(self, name: str, *kinds: str) -> list[int]:
        """Steps in which a request does one of these things (any, where none is named)."""
        seats = [(step, frame.seat_of(name)) for step, frame in enumerate(self.frames)]
        return [step for step, seat in seats if seat is not None and (not kinds or seat.kind in kinds)]

    def after(self, name: str) -> str:
        """Who takes a request's seat when it leaves."""
        last = self.steps_of(name)[-1]
        seat = self.frames[last].seat_of(name)
        assert seat is not None  # it sits there in its last step
        later = (other for frame in self.frames[last + 1 :] for other in frame.seats if other.slot == seat.slot)
        return next(other.name for other in later)


def film_of(workload: Workload, settings: Mapping[str, Any]) -> Film:
    """Run a workload and take it down step by step; raises what `simulator.run.simulate` does."""
    trace = simulate(workload, plans=True, **settings)
    run = TraceRun("tour", workload.name, trace)
    frames = tuple(_frame(run, int(step)) for step in run.column("steps", "step"))
    return Film(frames, run.slots_total, str(run.meta["layout"]), run.meta["config"]["padding_side"])


def _frame(run: Run, step: int) -> Frame:
    at = int(np.searchsorted(run.column("steps", "step"), step))
    number = {name: int(run.column("steps", name)[at]) for name in ("cols", "computed_tokens", "logits_rows")}
    rows = rows_of_step(run, step)
    padded = run.meta["layout"] == "padded"
    seats = [_seat(run, row, number["cols"] - row.scheduled if padded else 0) for row in rows]
    if padded:
        seats += [Seat(r.slot, _name(run, r.request), "ended", 0, number["cols"]) for r in burning_rows(run, step)]
    seats += _held(run, step, {seat.slot for seat in seats})
    return Frame(
        seats=tuple(sorted(seats, key=lambda seat: seat.slot)),
        cols=number["cols"],
        computed=number["computed_tokens"],
        useful=sum(row.scheduled for row in rows),
        logits_rows=number["logits_rows"],
        waiting=_waiting(run, step),
    )


def _seat(run: Run, row: Row, padding: int) -> Seat:
    prompt = int(run.column("requests", "prompt_tokens")[row.request])
    kind = "prefill" if row.computed < prompt else "decode"
    return Seat(row.slot, _name(run, row.request), kind, row.scheduled, padding)


def _held(run: Run, step: int, computing: set[int]) -> list[Seat]:
    """Requests that keep their seats while the step computes nothing for them."""
    spans = zip(run.column("spans", "request"), run.column("spans", "slot"), _during(run, step), strict=True)
    return [
        Seat(int(slot), _name(run, int(request)), "held", 0, 0)
        for request, slot, during in spans
        if during and slot >= 0 and int(slot) not in computing
    ]


def _waiting(run: Run, step: int) -> tuple[str, ...]:
    queued = _during(run, step) & (run.column("spans", "kind") == QUEUED)
    return tuple(_name(run, int(request)) for request in run.column("spans", "request")[queued])


def _during(run: Run, step: int) -> BoolArray:
    return (run.column("spans", "first_step") <= step) & (step <= run.column("spans", "last_step"))


def _name(run: Run, request: int) -> str:
    return run.names().get(request, str(request))
