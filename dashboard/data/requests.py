"""Requests of a run as panels look at them: times, names, where a moment stands in x, and who lost its seat when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboard.view import Axis
from traces.metrics import RequestTimes
from traces.schema import PREEMPTED, PREFILL, REQUESTS

from .memo import once as once  # for those who work with requests
from .run import Run
from .window import Window

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def times_of(run: Run) -> RequestTimes:
    """TTFT, TPOT, E2E and the like of each request."""
    return once(run, "times", _times)


def _times(run: Run) -> RequestTimes:
    columns = {name: run.column("requests", name) for name in REQUESTS.names}
    return RequestTimes.of_columns(columns, streams=streams(run))


def streams(run: Run) -> bool:
    """Whether tokens were delivered as they came; else all at once, and there is no ITL or TPOT."""
    return bool(run.meta.get("streams", True))


def in_view(window: Window, moment: str) -> Bools:
    """For which requests a moment (`first_token_s`, ...) lies in the view, ``(requests,)``; not where it never came."""
    x = x_of(window.run, window.axis, window.run.column("requests", moment))
    return np.asarray((x >= window.start) & (x <= window.end))


def x_of(run: Run, axis: Axis, time_s: Floats) -> Floats:
    """Where moments stand in x; in steps: as far into the step that ran then, or at the edge of the next. nan stays."""
    if axis == "time":
        return np.asarray(time_s - run.origin_s)
    begins, ends, steps = (run.column("steps", name) for name in ("t_start_s", "t_end_s", "step"))
    if not len(steps):
        return np.where(np.isnan(time_s), np.nan, 0.0)
    row = np.minimum(np.searchsorted(ends, time_s, side="left"), len(steps) - 1)
    length = ends[row] - begins[row]
    part = np.where(length > 0, (time_s - begins[row]) / np.where(length > 0, length, 1.0), 1.0)
    return np.where(np.isnan(time_s), np.nan, steps[row] + np.clip(part, 0.0, 1.0))


def name_of(names: Mapping[int, str], request: int, most: int = 60) -> str:
    """A request's name, or its number; the end of a long one, where names differ."""
    name = names.get(request, str(request))
    return name if len(name) <= most else f"…{name[1 - most :]}"


@dataclass(frozen=True)
class Preemptions:
    """Every loss of a seat in a run, ordered by step; each ``(preemptions,)``.

    Attributes:
        request: who lost its seat.
        slot: which seat; -1: not known.
        step: the step whose plan took it.
        start_s, end_s: since when and until when it was out; nan: it was still out when the trace ended.
        out_steps: whole steps for which it was out.
        lost_tokens: tokens it had computed in that seat.
        again_tokens: tokens computed when it was back, until it sampled or lost its seat again; -1: it never came back.
        ready_step: the last step of that; -1: it never came back.
    """

    request: Ints
    slot: Ints
    step: Ints
    start_s: Floats
    end_s: Floats
    out_steps: Ints
    lost_tokens: Ints
    again_tokens: Ints
    ready_step: Ints

    def __len__(self) -> int:
        return len(self.request)

    def where(self, keep: npt.NDArray[Any]) -> Preemptions:
        """Some of them: a mask or places."""
        return Preemptions(**{name: values[keep] for name, values in vars(self).items()})


def preemptions_of(run: Run) -> Preemptions:
    """Who lost its seat when, and what that cost."""
    return once(run, "preemptions", _preemptions)


def preemptions_in_view(window: Window) -> tuple[Preemptions, Floats]:
    """Those whose loss is in view, and its x."""
    lost = preemptions_of(window.run)
    x = x_of(window.run, window.axis, lost.start_s) if window.axis == "time" else lost.step.astype(np.float64)
    keep = (x >= window.start) & (x <= window.end)
    return lost.where(keep), x[keep]


def _preemptions(run: Run) -> Preemptions:
    """Spans are ordered by request, then in time: the seat before a loss is told by the spans before it."""
    request, kind, tokens, slot, first, last = (
        run.column("spans", name).astype(np.int64)
        for name in ("request", "kind", "tokens", "slot", "first_step", "last_step")
    )
    lost = np.flatnonzero(kind == PREEMPTED)
    before, after = np.maximum(lost - 1, 0), np.minimum(lost + 1, len(request) - 1)
    seated = (request[before] == request[lost]) & (before < lost)
    back = (request[after] == request[lost]) & (kind[after] == PREFILL)
    found = Preemptions(
        request=request[lost],
        slot=np.where(seated, slot[before], -1),
        step=first[lost],
        start_s=run.column("spans", "start_s")[lost],
        end_s=run.column("spans", "end_s")[lost],
        out_steps=last[lost] - first[lost] + 1,
        lost_tokens=np.where(seated, _tokens_in_seat(request, kind, tokens)[before], 0),
        again_tokens=np.where(back, tokens[after], -1),
        ready_step=np.where(back, last[after], -1),
    )
    return found.where(np.argsort(found.step, kind="stable"))


def _tokens_in_seat(request: Ints, kind: Ints, tokens: Ints) -> Ints:
    """Tokens a request has computed by the end of each span since it last lost its seat, ``(spans,)``."""
    begins = np.append(True, request[1:] != request[:-1])[: len(request)] | (kind == PREEMPTED)
    since = np.maximum.accumulate(np.where(begins, np.arange(len(request)), 0))
    total = np.cumsum(tokens)
    return np.asarray(total - (total - tokens)[since])
