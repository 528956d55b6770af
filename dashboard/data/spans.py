"""Spans in view: who does what from where to where in x; and slots as a raster where spans are too many to draw."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from traces.schema import DECODE, PADDING, PREFILL

from .memo import once
from .run import Run
from .window import Window

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
SEATED = (PREFILL, DECODE, PADDING)
RASTER_COLUMNS = 400
IDLE = 5
"""In a raster: nobody sits there most of the time. One beyond the kinds of spans."""


@dataclass(frozen=True)
class Spans:
    """Spans of a run that are in view, each ``(spans,)``; `left` and `right` in x, not cut to the view."""

    request: Ints
    slot: Ints
    kind: Ints
    first_step: Ints
    last_step: Ints
    tokens: Ints
    left: Floats
    right: Floats

    def __len__(self) -> int:
        return len(self.request)

    def where(self, keep: npt.NDArray[np.bool_]) -> Spans:
        """Some of them."""
        return Spans(**{name: values[keep] for name, values in vars(self).items()})


def spans_in_view(window: Window) -> Spans:
    """The spans that touch the view, in the trace's order."""
    run = window.run
    left, right = once(run, f"edges of spans by {window.axis}", partial(_edges, axis=window.axis))
    names = ("request", "slot", "kind", "first_step", "last_step", "tokens")
    spans = Spans(**{name: run.column("spans", name) for name in names}, left=left, right=right)
    keep = (right >= window.start) & (left <= window.end)
    return spans if keep.all() else spans.where(keep)


def raster(spans: Spans, window: Window, slots: int, columns: int = RASTER_COLUMNS) -> npt.NDArray[np.uint8]:
    """What each slot does most of the time in each column of the view, ``(slots, columns)``: a kind, or `IDLE`."""
    shares = np.stack([_coverage(spans, spans.kind == kind, window, slots, columns) for kind in SEATED])
    busy = shares.sum(axis=0)
    kinds = np.asarray(SEATED, dtype=np.uint8)[shares.argmax(axis=0)]
    return np.where(busy >= 0.5, kinds, np.uint8(IDLE)).astype(np.uint8)


def _coverage(spans: Spans, keep: npt.NDArray[np.bool_], window: Window, slots: int, columns: int) -> Floats:
    """Share of each column that some of the spans cover in each slot, ``(slots, columns)``.

    A span covers the columns between its ends wholly and those at its ends in part: whole columns come from a running
    sum over +1 and -1, the parts at the ends are taken off.
    """
    width = (window.end - window.start) / columns
    left = np.clip((spans.left[keep] - window.start) / width, 0, columns)
    right = np.clip((spans.right[keep] - window.start) / width, 0, columns)
    shape, size = (slots, columns + 1), slots * (columns + 1)
    first, last = np.floor(left).astype(np.int64), np.floor(right).astype(np.int64)
    base = spans.slot[keep].astype(np.int64) * (columns + 1)
    begun = np.bincount(base + first, minlength=size) - np.bincount(base + last, minlength=size)
    begun_parts = np.bincount(base + first, weights=left - first, minlength=size)
    ended_parts = np.bincount(base + last, weights=right - last, minlength=size)
    whole: Floats = np.cumsum(begun.reshape(shape), axis=1).astype(np.float64)
    shares: Floats = (whole - begun_parts.reshape(shape) + ended_parts.reshape(shape))[:, :columns]
    return shares


def _edges(run: Run, axis: str) -> tuple[Floats, Floats]:
    if axis == "step":
        first = run.column("spans", "first_step").astype(np.float64)
        return first, run.column("spans", "last_step") + 1.0
    origin, end_s = run.origin_s, run.column("steps", "t_end_s")
    ends = run.column("spans", "end_s")
    ends = np.where(np.isnan(ends), end_s[-1] if len(end_s) else 0.0, ends)
    return run.column("spans", "start_s") - origin, ends - origin
