"""What the board answers: gestures become views, views become figures, the cursor becomes a sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from dashboard.data.request_rows import csv_of
from dashboard.look import look_named
from dashboard.panels import PANELS
from dashboard.panels.frame import Frame
from dashboard.scene import Scene
from dashboard.services import Services
from dashboard.view import View
from scheduler.errors import UserError

from .fit import fitted
from .gestures import after
from .now import cursor_x, now

MOST_CSV_ROWS = 1_000_000
BROKEN = "This panel cannot be drawn from this trace; the terminal says why."
_log = logging.getLogger(__name__)


def register(app: Dash, services: Services) -> None:
    """Add the board's callbacks to an app, once for all pages that hold a board."""
    _register_browser_side(app)
    app.callback(
        Output("board-view", "data", allow_duplicate=True),
        Output("board-cursor", "data", allow_duplicate=True),
        Input("board-gesture", "data"),
        Input("board-axis", "value"),
        State("board-view", "data"),
        State("board-cursor", "data"),
        prevent_initial_call=True,
    )(partial(_moved, services))
    app.callback(
        Output("board-now", "children"),
        Output("board-problem", "children"),
        Output("board-problem", "hide"),
        Output("board-cursor", "data", allow_duplicate=True),
        Input("board-view", "data"),
        Input("board-cursor", "data"),
        Input("board-tick", "data"),
        prevent_initial_call="initial_duplicate",
    )(partial(_told, services))
    app.callback(
        Output({"type": "panel", "key": MATCH}, "figure"),
        Output({"type": "panel-words", "key": MATCH}, "children"),
        Input({"type": "panel-ask", "key": MATCH}, "data"),
        State({"type": "panel-ask", "key": MATCH}, "id"),
        prevent_initial_call=True,
    )(partial(_drawn, services))
    app.callback(
        Output("board-download", "data"),
        Input({"type": "panel-csv", "key": ALL}, "n_clicks"),
        State("board-view", "data"),
        State("board-cursor", "data"),
        prevent_initial_call=True,
    )(partial(_exported, services))


def _register_browser_side(app: Dash) -> None:
    browser = partial(ClientsideFunction, "board")
    app.clientside_callback(
        browser("refresh"), Output("board-sent", "data"), Input("board-view", "data"), Input("board-cursor", "data"),
        Input("theme", "data"), Input("board-tick", "data"),
    )  # fmt: skip
    for name, inputs in _BUTTONS.items():
        app.clientside_callback(
            browser(name), Output("board-gesture", "data", allow_duplicate=True), *inputs, prevent_initial_call=True
        )


_BUTTONS: dict[str, list[Input]] = {
    "play": [Input("board-play", "n_clicks")],
    "back": [Input("board-back", "n_clicks")],
    "on": [Input("board-on", "n_clicks")],
    "whole": [Input("board-whole", "n_clicks")],
    "speed": [Input("board-speed", "value")],
}


def scene_of(services: Services, view_fields: Mapping[str, Any], cursor: Mapping[str, Any] | None, theme: Any) -> Scene:
    """The scene that the stores of a board describe. Raises UserError for a run that cannot be had."""
    view = View.of_query({**view_fields, "step": (cursor or {}).get("step")})
    return Scene(services.catalog.runs(view.runs), view, look_named(theme))


def _moved(
    services: Services,
    gesture: Mapping[str, Any] | None,
    axis: str,
    fields: Mapping[str, Any],
    cursor: Mapping[str, Any],
) -> tuple[Any, Any]:
    view = View.of_query({**fields, "step": cursor.get("step")})
    try:
        runs = services.catalog.runs(view.runs)
    except UserError:
        return no_update, no_update  # the callback that tells of the cursor says so
    if ctx.triggered_id == "board-axis":
        moved = View.of_query({**view.whole().fields(), "x": axis})
    else:
        moved = after(gesture or {}, view, runs)
    told = no_update if moved.step == view.step and ctx.triggered_id != "board-axis" else {"step": moved.step}
    same = replace(moved, step=None) == replace(view, step=None)
    return (no_update if same else replace(moved, step=None).fields()), told


def _told(
    services: Services, fields: Mapping[str, Any], cursor: Mapping[str, Any], tick: Any
) -> tuple[Any, Any, bool, Any]:
    try:
        scene = scene_of(services, fields, cursor, None)
        x = cursor_x(scene)
        told = no_update if cursor.get("x") == x else {"step": scene.view.step, "x": x}
        return now(scene), "", True, told
    except UserError as error:
        return [], str(error), False, no_update


def _drawn(services: Services, ask: Mapping[str, Any], ident: Mapping[str, str]) -> tuple[Any, Any]:
    panel = PANELS[ident["key"]]
    try:
        scene = scene_of(services, ask.get("view") or {}, ask.get("cursor"), ask.get("theme"))
    except UserError:
        return no_update, ""  # said once, above the panels
    try:
        return fitted(panel.draw(scene), narrow=bool(ask.get("narrow"))), panel.words(scene)
    except Exception:  # a trace may hold anything; one panel that fails on it must not take the others along
        _log.exception("panel %s failed on runs %s", panel.key, ", ".join(scene.view.runs))
        return fitted(Frame(scene).empty(BROKEN), narrow=False), BROKEN


def _exported(
    services: Services, clicks: list[int | None], fields: Mapping[str, Any], cursor: Mapping[str, Any]
) -> Any:
    if not any(clicks) or not ctx.triggered_id:
        return no_update
    panel = PANELS[ctx.triggered_id["key"]]
    table = panel.table(scene_of(services, fields, cursor, None))
    content = csv_of(table.head(MOST_CSV_ROWS))
    return {"content": content, "filename": f"batchscope-{panel.key}.csv", "type": "text/csv"}
