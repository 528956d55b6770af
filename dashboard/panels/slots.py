"""The slot timeline: which seat does what, span by span, or as a raster where there are too many to see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from plotly.utils import image_array_to_data_uri

from dashboard.data.spans import IDLE, RASTER_COLUMNS, SEATED, Spans, raster, spans_in_view
from dashboard.data.window import Window
from dashboard.look import Figure, hatched
from dashboard.scene import Scene
from traces.schema import PREEMPTED, SPAN_KINDS

from .base import Panel
from .frame import Frame, plain, typed

MOST_ROWS = 128
"""Slots whose bars are more than two pixels high; thinner ones lose their colour."""
MOST_BARS = 1500
"""Bars that a browser draws at once without a pause, over all runs."""
MOST_MARKS = 400
"""Preemptions marked over all runs; of more the note tells how many there are."""
MOST_APART, PIXELS_APART = 64, 6
"""Up to so many slots a line between them shows: each is so many pixels high, the last of them empty."""
ROW_PX = 14
HEIGHTS = (140, 420)


def draw(scene: Scene) -> Figure:
    """Bars of spans; a raster of slots x time where they are too many."""
    slots = max((run.slots_total for run in scene.runs), default=1)
    low, high = HEIGHTS
    frame = Frame(scene, row_height=min(high, max(low, ROW_PX * slots)), y="slot")
    for row, window in enumerate(scene.windows):
        _row(frame, row, window)
        frame.yaxis(
            row, range=[window.run.slots_total - 0.5, -0.5], rangemode="normal", showgrid=False, dtick=_tick(slots)
        )
    frame.layout["barmode"] = "overlay"
    return frame.figure()


def _row(frame: Frame, row: int, window: Window) -> None:
    spans, runs = spans_in_view(window), len(frame.scene.runs)
    seated, lost = np.isin(spans.kind, SEATED), np.count_nonzero(spans.kind == PREEMPTED)
    told = []
    if np.count_nonzero(seated) * runs <= MOST_BARS and window.run.slots_total <= MOST_ROWS:
        _bars(frame, row, window, spans.where(seated))
    else:
        _raster(frame, row, window, spans)
        told.append("each cell: what its slot does most of that time")
    if lost * runs <= MOST_MARKS:
        _preemptions(frame, row, spans)
    else:
        told.append(f"{lost:,} preemptions, too many to mark")
    if told:
        frame.note("; ".join([*told, "zoom in for more"]), row=row, right=True)


def _bars(frame: Frame, row: int, window: Window, spans: Spans) -> None:
    names = window.run.names()
    for kind in SEATED:
        part = spans.where(spans.kind == kind)
        if not len(part):
            continue
        frame.add(
            row, type="bar", orientation="h", name=SPAN_KINDS[kind], y=typed(part.slot), base=typed(part.left),
            x=typed(part.right - part.left), width=0.82, customdata=_texts(part, names),
            hovertemplate="%{customdata}<extra></extra>", marker=_marker(frame, kind),
        )  # fmt: skip


def _marker(frame: Frame, kind: int) -> dict[str, Any]:
    look, name = frame.scene.look, SPAN_KINDS[kind]
    line = {"width": 0.5, "color": look.card}
    if name == "padding":
        return {"color": look.card, "pattern": hatched(look), "line": {"width": 0.5, "color": look.kinds["padding"]}}
    return {"color": look.kinds[name], "line": line}


def _texts(spans: Spans, names: Any) -> list[str]:
    columns = (spans.request, spans.slot, spans.kind, spans.first_step, spans.last_step, spans.tokens)
    return [
        f"request {plain(str(names.get(request, request))[:60])}<br>{SPAN_KINDS[kind]}, slot {slot}<br>"
        f"steps {first:,} to {last:,}" + (f", {tokens:,} tokens" if tokens else "")
        for request, slot, kind, first, last, tokens in zip(*(values.tolist() for values in columns), strict=True)
    ]


def _raster(frame: Frame, row: int, window: Window, spans: Spans) -> None:
    """A picture, a pixel a cell: browsers show it at once, where a heat map of so many cells takes them long."""
    slots = window.run.slots_total
    look = frame.scene.look
    colors = {SPAN_KINDS[kind]: look.kinds[SPAN_KINDS[kind]] for kind in SEATED}
    shades = [*colors.values(), look.card]  # nobody there: as empty as beside bars
    palette = np.array([[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in shades], dtype=np.uint8)
    pixels = palette[np.searchsorted([*SEATED, IDLE], raster(spans, window, slots))]
    tall = 1
    if slots <= MOST_APART:
        tall = PIXELS_APART
        pixels = np.repeat(pixels, tall, axis=0)
        pixels[tall - 1 :: tall] = [int(look.card[at : at + 2], 16) for at in (1, 3, 5)]
    width = (window.end - window.start) / RASTER_COLUMNS
    frame.add(
        row, type="image", source=image_array_to_data_uri(pixels, backend="pypng"), x0=window.start + width / 2,
        dx=width, y0=0.5 / tall - 0.5, dy=1 / tall, hovertemplate="slot %{y:.0f}<extra></extra>",
    )  # fmt: skip
    frame.yaxis(row, scaleanchor=False)
    for kind, color in colors.items():
        frame.add(row, type="scatter", mode="markers", x=[None], y=[None], name=kind,
                  marker={"symbol": "square", "size": 9, "color": color})  # fmt: skip


def _preemptions(frame: Frame, row: int, spans: Spans) -> None:
    """Marks where a request lost its seat: the span before in its seat ends there."""
    before = _seat_before(spans)
    keep = np.flatnonzero((spans.kind == PREEMPTED) & (before >= 0))
    if not len(keep):
        return
    frame.add(
        row, type="scatter", mode="markers", name="preempted", x=typed(spans.left[keep]), y=typed(before[keep]),
        customdata=spans.request[keep].tolist(), hovertemplate="request %{customdata} loses its seat<extra></extra>",
        marker={"symbol": "x", "size": 8, "color": frame.scene.look.kinds["preempted"]},
    )  # fmt: skip


def _seat_before(spans: Spans) -> Any:
    """Slot of the span before, where it is of the same request; else -1. Spans are ordered by request, then time."""
    before = np.full(len(spans), -1, dtype=np.int64)
    same = spans.request[1:] == spans.request[:-1]
    before[1:][same] = spans.slot[:-1][same]
    return before


def _tick(slots: int) -> int:
    return next(tick for tick in (1, 2, 4, 8, 16, 32, 64, 128, 1 << 30) if slots / tick <= 16)


def words(scene: Scene) -> str:
    """How many spans of what are in view."""
    return " ".join(_sentence(scene, index, window) for index, window in enumerate(scene.windows))


def _sentence(scene: Scene, index: int, window: Window) -> str:
    spans = spans_in_view(window)
    numbers = np.bincount(spans.kind, minlength=len(SPAN_KINDS)).tolist()
    counts = [f"{number:,} {name}" for number, name in zip(numbers, SPAN_KINDS, strict=True)]
    return f"{scene.label(index)}: {window.run.slots_total} slots; spans in view: {', '.join(counts)}."


def table(scene: Scene) -> pd.DataFrame:
    """One row a span in view."""
    frames = []
    for index, window in enumerate(scene.windows):
        spans = spans_in_view(window)
        frame = pd.DataFrame(vars(spans)).drop(columns=["left", "right"])
        frame["kind"] = [SPAN_KINDS[kind] for kind in spans.kind.tolist()]
        frame.insert(0, "run", scene.runs[index].name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


PANEL = Panel(
    key="slots",
    title="Slots",
    question="Who sits where: prompts, decoding, rows that burn on after their end, and empty seats.",
    draw=draw,
    words=words,
    table=table,
)
