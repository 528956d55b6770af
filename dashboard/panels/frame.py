"""The frame of a figure: one row of axes for each run above a shared x, and the pieces that panels fill it with."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboard.data.window import Window
from dashboard.look import MOST_RUNS, Figure, axis, hatched, layout
from dashboard.scene import Scene

TOP, BOTTOM = 44, 38
"""Pixels above the first row (legend) and below the last (x)."""
GAP = 26
"""Pixels between rows: a run's label stands there."""
_SHORT = {"float64": "f8", "float32": "f4", "int64": "i4", "int32": "i4", "int16": "i2", "int8": "i1", "uint8": "u1",
          "bool": "u1"}  # fmt: skip


def typed(values: npt.ArrayLike) -> dict[str, Any]:
    """An array as Plotly's typed array: bytes instead of text. int64 must fit int32 (browsers have no int64)."""
    array = np.asarray(values)
    kind = _SHORT[array.dtype.name]
    if array.dtype == np.int64 and array.size and np.abs(array).max() > np.iinfo(np.int32).max:
        kind = "f8"
    data = np.ascontiguousarray(array, dtype=f"<{kind}")
    shape = {"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {}
    return {"dtype": kind, "bdata": base64.b64encode(data.tobytes()).decode(), **shape}


class Frame:
    """A figure under construction.

    Args:
        scene: what is drawn.
        row_height: pixels of each run's axes.
        y: title of the y axes (a unit).
        shares_x: x is the view's axis.
        x: title of x, where it is another.
    """

    def __init__(self, scene: Scene, *, row_height: int = 150, y: str = "", shares_x: bool = True, x: str = "") -> None:
        self.scene = scene
        self.rows = max(1, len(scene.runs))
        self.data: list[dict[str, Any]] = []
        inner = self.rows * row_height + (self.rows - 1) * GAP
        self.layout = layout(scene.look, height=inner + TOP + BOTTOM)
        self.layout["margin"] = {**self.layout["margin"], "t": TOP, "b": BOTTOM}
        self.layout["legend"]["y"] = 1 + 22 / inner
        self.layout["annotations"] = []
        self._add_x(shares_x, x)
        for row in range(self.rows):
            top = 1 - row * (row_height + GAP) / inner
            self.layout[self._name("yaxis", row)] = axis(
                scene.look, domain=[max(0.0, top - row_height / inner), top], anchor="x", rangemode="tozero",
                title={"text": y, "font": {"size": 11, "color": scene.look.muted}, "standoff": 6}, fixedrange=True,
            )  # fmt: skip
            if scene.runs:
                self.note(scene.label(row), row=row)

    def add(self, row: int, **trace: Any) -> None:
        """Add a Plotly trace to a run's axes; a name's legend entry is shown once for all runs."""
        if trace.get("type") != "image":  # which has no place in a legend
            known = any(other.get("name") == trace.get("name") for other in self.data)
            trace = {"legendgroup": trace.get("name"), "showlegend": not known, **trace}
        self.data.append({"xaxis": "x", "yaxis": self._name("y", row), **trace})

    def note(self, text: str, *, row: int = 0, right: bool = False) -> None:
        """A muted line above a run's axes, at the left or the right; behind the run's label where there is one."""
        if right and self.scene.runs:
            self.layout["annotations"][row]["text"] += f" · {plain(text)}"  # labels come first, one for each row
            return
        top = self.layout[self._name("yaxis", row)]["domain"][1]
        self.layout["annotations"].append(
            {"text": plain(text), "xref": "paper", "yref": "paper", "x": 1.0 if right else 0.0, "y": top,
             "xanchor": "right" if right else "left", "yanchor": "bottom", "showarrow": False, "yshift": 3,
             "font": {"size": 11, "color": self.scene.look.muted}}
        )  # fmt: skip

    def line(self, row: int, y: float, text: str, **more: Any) -> None:
        """A level line across a run's axes, named in the legend; `more` goes to Plotly's trace."""
        start, end = self.scene.span
        self.add(row, type="scatter", mode="lines", x=[start, end], y=[y, y], name=text, hoverinfo="skip",
                 line={"color": self.scene.look.ink, "width": 1, "dash": "dot"}, **more)  # fmt: skip

    def right_axis(self, row: int, title: str) -> str:
        """Add a second y axis at the right of a run's axes; returns its name for `add(..., yaxis=...)`."""
        number, muted = row + 1 + MOST_RUNS, self.scene.look.muted
        self.layout[f"yaxis{number}"] = axis(
            self.scene.look, overlaying=self._name("y", row), side="right", showgrid=False, rangemode="tozero",
            fixedrange=True, tickmode="auto", nticks=5,
            title={"text": title, "font": {"size": 11, "color": muted}, "standoff": 6},
        )  # fmt: skip
        return f"y{number}"

    def yaxis(self, row: int, **more: Any) -> None:
        """Change a run's y axis."""
        self.layout[self._name("yaxis", row)].update(more)

    def empty(self, sentence: str) -> Figure:
        """The figure as nothing but a sentence: what is missing, and why."""
        self.data.clear()
        self.layout["annotations"] = [
            {"text": plain(sentence), "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False,
             "font": {"size": 13, "color": self.scene.look.muted}}
        ]  # fmt: skip
        for name in [key for key in self.layout if key.startswith(("xaxis", "yaxis"))]:
            self.layout[name]["visible"] = False
        return self.figure()

    def figure(self) -> Figure:
        """What was built."""
        drawn = {trace["yaxis"] for trace in self.data if _has_points(trace)}
        for row in range(self.rows):
            shown = self.layout[self._name("yaxis", row)].get("visible", True)
            if shown and self._name("y", row) not in drawn:  # else Plotly may draw its axis before it has a size
                self.add(row, type="scatter", x=[None], y=[None], showlegend=False, hoverinfo="skip")
        return {"data": self.data, "layout": self.layout}

    def _add_x(self, shares_x: bool, title: str) -> None:
        look, by_time = self.scene.look, self.scene.view.axis == "time"
        if shares_x:
            title = "seconds since the first arrival" if by_time else "step"
        more: dict[str, Any] = {"range": list(self.scene.span)} if shares_x else {}
        bottom = self._name("y", self.rows - 1)
        self.layout["xaxis"] = axis(look, anchor=bottom, showgrid=False, **more, title={
            "text": title, "font": {"size": 11, "color": look.muted}, "standoff": 4})  # fmt: skip
        if not shares_x:
            self.layout["xaxis"]["fixedrange"] = False

    def _name(self, what: str, row: int) -> str:
        return what if row == 0 else f"{what}{row + 1}"


def _has_points(trace: Mapping[str, Any]) -> bool:
    values = (trace.get(name) for name in ("x", "y", "z"))
    return any(bool(each["bdata"]) if isinstance(each, dict) else each is not None and len(each) > 0 for each in values)


def stack(frame: Frame, row: int, window: Window, layers: Sequence[Mapping[str, Any]], unit: str) -> None:
    """Layers on each other as filled lines of steps.

    Args:
        frame: where.
        row: whose axes.
        window: the run's steps in view.
        layers: of each ``name``, ``color``, ``values`` ``(pieces,)``; ``hatched`` true for padding.
        unit: what stands behind a value in the hover.
    """
    outline = window.outline
    for layer in layers:
        fill: dict[str, Any] = {"fillcolor": layer["color"]}
        if layer.get("hatched"):
            fill = {"fillpattern": {**hatched(frame.scene.look), "fgcolor": layer["color"]}}
        frame.add(
            row, type="scatter", mode="lines", name=layer["name"], x=typed(outline.x),
            y=typed(outline.y(np.asarray(layer["values"], dtype=np.float64))), stackgroup=f"row{row}",
            line={"shape": "hv", "width": 0, "color": layer["color"]}, hovertemplate=f"%{{y:,.4~g}} {unit}", **fill,
        )  # fmt: skip


def hover_head(frame: Frame, row: int, window: Window, texts: Sequence[str]) -> None:
    """The first line of a unified hover: what is said of each piece; texts ``(pieces,)``."""
    outline = window.outline
    lines = ["no step runs" if piece < 0 else texts[piece] for piece in outline.piece.tolist()]
    frame.add(row, type="scatter", mode="lines", x=typed(outline.x), y=typed(np.zeros(len(outline.x))), name="",
              line={"width": 0, "color": "rgba(0,0,0,0)"}, customdata=lines,
              hovertemplate="%{customdata}<extra></extra>", showlegend=False)  # fmt: skip


def piece_texts(window: Window) -> list[str]:
    """Which steps each piece is, ``(pieces,)``."""
    first = window.steps
    if window.exact:
        return [f"step {step:,}" for step in first.tolist()]
    last = first + window.counts - 1
    return [
        f"step {a:,}" if a == b else f"steps {a:,} to {b:,}" for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]


def plain(text: str) -> str:
    """Text that Plotly shows as it is: it reads a part of HTML in annotations and hovers."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
