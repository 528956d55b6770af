"""The board as components: transport, the cursor's line, and a card for each panel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.panels import PANELS
from dashboard.panels.base import Panel
from dashboard.parts.aria import aria, data
from dashboard.view import View

SPEEDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 100)
"""Seconds of the run per second of watching."""
GRAPH_CONFIG: Any = {
    "displaylogo": False,
    "responsive": True,
    "doubleClick": False,
    "scrollZoom": False,
    "modeBarButtons": [["toImage", "zoom2d", "pan2d"]],
    "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "batchscope"},
}


def board(view: View, panels: Sequence[str], *, transport: bool = True, extra: Sequence[Any] = ()) -> Any:
    """Panels over the runs of a view.

    Args:
        view: what to show first.
        panels: keys, in order.
        transport: with play, pause and speed.
        extra: controls that stand first.
    """
    fields = view.fields()
    step = fields.pop("step", None)
    return html.Div(
        [
            dcc.Store(id="board-view", data=fields),
            dcc.Store(id="board-cursor", data={"step": None if step is None else int(step)}),
            dcc.Store(id="board-gesture"),
            dcc.Store(id="board-tick", data=0),
            dcc.Store(id="board-sent"),
            dcc.Download(id="board-download"),
            _bar(view, transport, extra),
            html.Div(id="board-now", className="now", **aria(live="polite")),
            dmc.Alert(id="board-problem", color="red", hide=True, withCloseButton=False, className="problem"),
            html.Div([_card(PANELS[key]) for key in panels], className="cards", id="board-cards"),
        ],
        className="board",
        id="board",
    )


def _bar(view: View, transport: bool, extra: Sequence[Any]) -> Any:
    play = [
        dmc.Button("Play", id="board-play", size="xs", w=76),
        dmc.ActionIcon("‹", id="board-back", variant="default", size="md", **aria(label="One step back")),
        dmc.ActionIcon("›", id="board-on", variant="default", size="md", **aria(label="One step on")),
        dmc.Select(
            id="board-speed", data=[{"value": str(speed), "label": f"{speed:g}×"} for speed in SPEEDS], value="1",
            allowDeselect=False, size="xs", w=84, **aria(label="Speed"),
        ),
    ]  # fmt: skip
    x = dmc.SegmentedControl(
        id="board-axis", size="xs", value=view.axis,
        data=[{"value": "time", "label": "time"}, {"value": "step", "label": "steps"}],
    )  # fmt: skip
    whole = dmc.Button("Whole run", id="board-whole", size="xs", variant="default")
    return html.Div([*extra, *(play if transport else []), x, whole], className="bar")


def _card(panel: Panel) -> Any:
    kind = "shares-x" if panel.shares_x else "own-x"
    return html.Section(
        [
            html.Div(
                [
                    html.Div([html.H3(panel.title), html.P(panel.question)], className="card-head"),
                    dmc.Button(
                        "CSV", id={"type": "panel-csv", "key": panel.key}, size="compact-xs", variant="subtle",
                        **aria(label=f"{panel.title} as CSV"),
                    ),
                ],
                className="card-top",
            ),
            html.Div(className="legend-row"),
            html.Div(
                dcc.Graph(id={"type": "panel", "key": panel.key}, config=GRAPH_CONFIG, figure=_blank()),
                className=f"plot {kind}",
                role="figure",
                **aria(label=panel.title),
            ),
            html.P("", id={"type": "panel-words", "key": panel.key}, className="words"),
            dcc.Store(id={"type": "panel-ask", "key": panel.key}),
        ],
        className=f"card {kind}",
        id=f"card-{panel.key}",
        **data(key=panel.key, cursor="yes" if panel.follows_cursor else "no"),
    )  # fmt: skip


def _blank() -> dict[str, Any]:
    axes = {"visible": False}
    return {"data": [], "layout": {"xaxis": axes, "yaxis": axes, "height": 200, "paper_bgcolor": "rgba(0,0,0,0)",
                                   "plot_bgcolor": "rgba(0,0,0,0)"}}  # fmt: skip
