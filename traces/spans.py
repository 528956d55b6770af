"""Whole spans from their open and close events."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .schema import DECODE, PADDING, PREFILL, SPANS
from .store import Columns, Rows


def pair_spans(events: Rows, last_step: int) -> Columns:
    """The columns of `SPANS` from rows of `SPAN_EVENTS`, ordered by request, then in time.

    Spans that are still open last until `last_step`, with ``end_s`` nan and 0 tokens. Spans of no step and no time
    are left out.
    """
    order = np.argsort(events["request"], kind="stable")
    opening = order[events["open"][order] == 1]
    closing = _matching_close(events, order)
    open_ended = closing < 0
    spans: Columns = {name: events[name][opening] for name in ("request", "slot", "kind")}
    spans["first_step"] = events["step"][opening]
    spans["last_step"] = np.where(open_ended, last_step, events["step"][closing])
    spans["tokens"] = np.where(open_ended, 0, events["tokens"][closing]).astype(SPANS.dtype["tokens"])
    spans["start_s"] = events["time_s"][opening]
    spans["end_s"] = np.where(open_ended, np.nan, events["time_s"][closing])
    keep = ~_is_empty(spans)
    return {name: spans[name][keep] for name in SPANS.names}


def _matching_close(events: Rows, order: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """For each opening, in `order`, the event that closes it: the next one of its request; -1 where there is none.

    A request is in one span at a time, so the events of each alternate.
    """
    opens = np.flatnonzero(events["open"][order] == 1)
    after = np.minimum(opens + 1, max(0, len(order) - 1))
    request = events["request"]
    closed = (after > opens) & (request[order[after]] == request[order[opens]]) & (events["open"][order[after]] == 0)
    return np.where(closed, order[after], -1)


def _is_empty(spans: Columns) -> npt.NDArray[np.bool_]:
    no_step = spans["last_step"] < spans["first_step"]
    seated = np.isin(spans["kind"], (PREFILL, DECODE, PADDING))
    return np.asarray(no_step & (seated | (spans["end_s"] <= spans["start_s"])))
