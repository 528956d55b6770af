"""What the Replay page shows of runs that were compared with a measured one: a card each."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard.board.fit import fitted
from dashboard.board.layout import GRAPH_CONFIG
from dashboard.data.run import Run
from dashboard.look import Look
from dashboard.parts.aria import aria
from dashboard.scene import Scene

from .figure import figure
from .read import Comparison, comparison_of
from .words import badges, latency_table, sentences, totals_table

TITLE = "Against the measured run"


def cards(scene: Scene) -> list[Any]:
    """A card for each run that brings a comparison along; none for the others."""
    shown = ((index, run, comparison_of(run)) for index, run in enumerate(scene.runs))
    return [_card(scene, index, run, found) for index, run, found in shown if found is not None]


def _card(scene: Scene, index: int, run: Run, found: Comparison | str) -> Any:
    head = html.Summary([html.H3(TITLE), html.Span(scene.label(index), className="words")])
    if isinstance(found, str):
        return _folding([head, html.P(found, className="words")])
    parts = [badges(found), _curves(found, scene.look, run.key), latency_table(found), totals_table(found)]
    told = html.Ul([html.Li(sentence) for sentence in sentences(found)], className="words against-notes")
    return _folding([head, *(part for part in parts if part is not None), told])


def _folding(parts: list[Any]) -> Any:
    """Open at first; folded it leaves the page to the run's own panels."""
    return html.Section(html.Details(parts, open=True), className="card against")


def _curves(found: Comparison, look: Look, key: str) -> Any:
    drawn = figure(found, look)
    if drawn is None:
        return None
    made = fitted(drawn, narrow=False)
    return html.Div(
        [
            html.Div(_legend(drawn), className="legend-row"),
            dcc.Graph(id={"type": "against", "key": key}, figure=made, config=GRAPH_CONFIG),
        ],
        className="plot own-x", role="figure", **aria(label=f"{TITLE}: running, waiting, KV blocks over time"),
    )  # fmt: skip


def _legend(drawn: dict[str, Any]) -> list[Any]:
    """Each line's piece and its name, which is what it is: measured or simulated."""
    first = {trace["name"]: trace["line"] for trace in drawn["data"]}
    return [
        html.Span(
            [
                html.Span(className="stroke", style={"borderTop": f"2px {_css(line)} {line['color']}"}),
                html.Span(side, className=f"badge {side}"),
            ]
        )
        for side, line in first.items()
    ]


def _css(line: dict[str, Any]) -> str:
    return "dashed" if line.get("dash") else "solid"
