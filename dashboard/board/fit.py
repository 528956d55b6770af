"""A panel's figure made to fit its card: the legend is the page's (it wraps), and margins follow the width."""

from __future__ import annotations

from dashboard.look import Figure

TOP = 22
"""Pixels above the first row once the legend is gone: a run's label still stands there."""
NARROW = {"l": 44, "r": 42}
"""Margins on a small screen; the same for all panels, so that x lines up."""


def fitted(figure: Figure, *, narrow: bool) -> Figure:
    """The figure without its own legend, less high by the room that took."""
    layout = figure["layout"]
    margin = layout.get("margin", {})
    spare = max(0, margin.get("t", TOP) - TOP)
    sides = NARROW if narrow else {}
    return {
        **figure,
        "layout": {
            **layout,
            "showlegend": False,
            "height": layout["height"] - spare,
            "margin": {**margin, "t": margin.get("t", TOP) - spare, **sides},
        },
    }
