"""Replay: recorded runs, played and compared."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html, no_update

from dashboard.board.layout import board
from dashboard.look import MOST_RUNS
from dashboard.panels import PANELS
from dashboard.parts.aria import aria
from dashboard.parts.run_list import run_choices
from dashboard.services import Services
from dashboard.view import View

PATH = "/replay"
TITLE = "Replay"


def layout(services: Services, **query: Any) -> Any:
    """The board over the runs of the address; at a first visit over a sample."""
    view = View.of_query(query)
    choices = run_choices(services)
    if not view.runs and choices:
        view = View.of_query({**query, "run": _first(services)})
    return dmc.Stack(
        [
            html.Div(
                [
                    html.H1(TITLE),
                    dmc.MultiSelect(
                        id="replay-runs", data=choices, value=list(view.runs), maxValues=MOST_RUNS, searchable=True,
                        placeholder="Choose up to four runs", className="run-choice", **aria(label="Runs"),
                    ),
                ],
                className="page-head",
            ),
            board(view, list(PANELS)),
        ],
        gap="md",
    )  # fmt: skip


def _first(services: Services) -> str:
    keys = [entry.key for entry in services.catalog.entries()]
    return next((key for key in keys if not key.startswith("sample-")), keys[0] if keys else "")


def register(app: Dash, services: Services) -> None:
    """Choosing other runs changes the board's view."""

    @app.callback(
        Output("board-view", "data", allow_duplicate=True),
        Input("replay-runs", "value"),
        State("board-view", "data"),
        prevent_initial_call=True,
    )
    def _choose(keys: list[str], fields: dict[str, str]) -> Any:
        chosen = ",".join(keys)
        return (
            no_update if chosen == fields.get("run", "") else View.of_query({**fields, "run": chosen}).whole().fields()
        )
