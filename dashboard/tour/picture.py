"""The picture of a tour's run: seats × steps, up to a step; one small square a token or cell of padding."""

from __future__ import annotations

from typing import Any

from dashboard.look import Figure, Look, axis, hatched, layout
from dashboard.panels.frame import plain

from .film import Film, Frame, Seat

_LANE = 62
"""Pixels a seat."""
_HALF = 0.26
"""Half the height of a seat's squares, in seats."""
_INSET = 0.05
"""Free space at both sides of a step."""
_SAYS = {
    "prefill": "a token of its prompt",
    "decode": "its last token, to sample the next",
    "padding": "padding, computed for nothing",
    "ended": "it has ended; its row burns on",
}


def picture(film: Film, shown: int, look: Look) -> Figure:
    """Seats × steps up to step `shown`; steps to come are left blank."""
    steps = len(film.frames)
    data: list[dict[str, Any]] = [_idle(film, shown, look)]
    data += [_squares(film, shown, kind, look) for kind in ("prefill", "decode", "padding", "ended")]
    return {
        "data": [trace for trace in data if trace["x"]],
        "layout": layout(
            look, height=film.slots * _LANE + 44, showlegend=False, barmode="overlay", dragmode=False,
            margin={"l": 52, "r": 8, "t": 4, "b": 40}, annotations=_names(film, shown, look),
            shapes=[_cursor(film, shown, look)],
            xaxis=axis(look, range=[0, steps], fixedrange=True, showgrid=False, tickmode="array",
                       tickvals=[step + 0.5 for step in range(steps)], ticktext=[str(step) for step in range(steps)],
                       title={"text": "step", "font": {"size": 11, "color": look.muted}, "standoff": 4}),
            yaxis=axis(look, range=[film.slots - 0.5, -0.5], fixedrange=True, showgrid=False, tickmode="array",
                       tickvals=list(range(film.slots)), ticktext=[f"seat {slot}" for slot in range(film.slots)]),
        ),
    }  # fmt: skip


def words(film: Film, shown: int) -> str:
    """The step under the cursor, in words."""
    frame = film.frames[shown]
    seats = "; ".join(f"seat {seat.slot}: {_seat_words(seat)}" for seat in frame.seats)
    waiting = f" Waiting: {', '.join(frame.waiting)}." if frame.waiting else " Nobody waits."
    return f"Step {shown}: {seats}.{waiting}"


def counter(film: Film, shown: int) -> str:
    """What has been computed up to a step."""
    seen = film.frames[: shown + 1]
    computed, useful = sum(frame.computed for frame in seen), sum(frame.useful for frame in seen)
    unit = "cells" if film.layout == "padded" else "rows"
    return (
        f"{shown + 1} of {len(film.frames)} steps · {computed} {unit} computed · {useful} of them tokens "
        f"({useful / computed:.0%} useful)"
    )


def _seat_words(seat: Seat) -> str:
    if seat.kind == "held":
        return f"{seat.name} sits idle"
    if seat.kind == "ended":
        return f"{seat.name} has ended and burns on ({seat.padding} padding)"
    padding = f" and {seat.padding} padding" if seat.padding else ""
    many = f"{seat.tokens} token{'' if seat.tokens == 1 else 's'}"
    return f"{seat.name} {'prefills' if seat.kind == 'prefill' else 'decodes'} {many}{padding}"


def _squares(film: Film, shown: int, kind: str, look: Look) -> dict[str, Any]:
    """All squares of one kind, as bars."""
    cells = [
        (step, seat, place)
        for step, frame in enumerate(film.frames[: shown + 1])
        for seat in frame.seats
        for place in _places(film, frame, seat, kind)
    ]
    width = [(1 - 2 * _INSET) / film.frames[step].cols for step, _, _ in cells]
    hatch = kind in ("padding", "ended")
    marker: dict[str, Any] = {"color": look.card if hatch else look.kinds[kind],
                              "line": {"width": 1, "color": look.kinds["padding"] if hatch else look.card}}  # fmt: skip
    if hatch:
        marker["pattern"] = hatched(look)
    return {
        "type": "bar", "orientation": "h", "name": kind, "marker": marker, "x": width, "width": 2 * _HALF,
        "base": [step + _INSET + place * w for (step, _, place), w in zip(cells, width, strict=True)],
        "y": [seat.slot for _, seat, _ in cells],
        "hovertext": [f"step {step}, seat {seat.slot}: {plain(seat.name)}<br>{_SAYS[kind]}" for step, seat, _ in cells],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip


def _places(film: Film, frame: Frame, seat: Seat, kind: str) -> range:
    """Which columns of a step a seat's squares of one kind take: pads stand where the rectangle pads."""
    if kind == "ended":
        return range(seat.padding if seat.kind == "ended" else 0)
    if seat.kind == "ended" or kind not in (seat.kind, "padding"):
        return range(0)
    first = frame.cols - seat.tokens if film.layout == "padded" and film.padding_side == "left" else 0
    if kind == "padding":
        return range(first) if first else range(seat.tokens, seat.tokens + seat.padding)
    return range(first, first + seat.tokens)


def _idle(film: Film, shown: int, look: Look) -> dict[str, Any]:
    seats = {(step, seat.slot): seat for step, frame in enumerate(film.frames) for seat in frame.seats}
    places = [(step, slot) for step in range(shown + 1) for slot in range(film.slots)]
    idle = {place: seats.get(place) for place in places if place not in seats or seats[place].kind == "held"}
    return {
        "type": "bar", "orientation": "h", "name": "idle", "x": [1 - 2 * _INSET] * len(idle), "width": 2 * _HALF,
        "base": [step + _INSET for step, _ in idle], "y": [slot for _, slot in idle],
        "marker": {"color": look.kinds["idle"]}, "hovertemplate": "%{hovertext}<extra></extra>",
        "hovertext": [f"{plain(seat.name)} keeps its seat, but nothing is computed for it" if seat else "an empty seat"
                      for seat in idle.values()],
    }  # fmt: skip


def _names(film: Film, shown: int, look: Look) -> list[dict[str, Any]]:
    return [
        {"text": plain(seat.name), "x": step + _INSET, "y": seat.slot - _HALF, "xanchor": "left", "yanchor": "bottom",
         "showarrow": False, "borderpad": 0,
         "font": {"size": 11, "color": look.muted if seat.kind in ("ended", "held") else look.ink}}
        for step, frame in enumerate(film.frames[: shown + 1])
        for seat in frame.seats
    ]  # fmt: skip


def _cursor(film: Film, shown: int, look: Look) -> dict[str, Any]:
    return {"type": "rect", "x0": shown, "x1": shown + 1, "y0": -0.5, "y1": film.slots - 0.5, "layer": "below",
            "fillcolor": look.accent, "opacity": 0.1, "line": {"width": 0}}  # fmt: skip
