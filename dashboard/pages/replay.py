"""Replay: recorded runs, played and compared."""

from __future__ import annotations

import base64
import binascii
from functools import partial
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboard.against.cards import cards
from dashboard.board.callbacks import scene_of
from dashboard.board.layout import board
from dashboard.data.run import Run
from dashboard.look import MOST_RUNS
from dashboard.owner import current_owner
from dashboard.panels import PANELS
from dashboard.parts.aria import aria, data
from dashboard.parts.diagnosis import diagnosis
from dashboard.parts.request_table import register as register_requests
from dashboard.parts.request_table import request_table
from dashboard.parts.run_list import run_choices
from dashboard.parts.summary import summary
from dashboard.services import Services
from dashboard.view import View
from scheduler.errors import UserError

PATH = "/replay"
TITLE = "Replay"


def layout(services: Services, **query: Any) -> Any:
    """The board over the runs of the address; at a first visit over a given trace, or a sample."""
    view = View.of_query(query)
    if not view.runs:
        view = View.of_query({**query, "run": _first(services)})
    return dmc.Stack(
        [
            html.Div(
                [
                    html.H1(TITLE),
                    dmc.MultiSelect(
                        id="replay-runs", data=run_choices(services, view.runs), value=list(view.runs),
                        maxValues=MOST_RUNS, searchable=True, placeholder="Choose up to four runs",
                        className="run-choice", **aria(label="Runs"),
                    ),
                    dcc.Upload(
                        dmc.Button("Open a trace…", variant="default"), id="replay-upload",
                        max_size=services.uploads.most_upload_bytes,
                    ),
                ],
                className="page-head",
            ),
            html.P(id="replay-said", className="said", **aria(live="polite")),
            html.Div(id="replay-against", className="cards one-column against-cards"),
            board(view, list(PANELS)),
            html.Div(
                [
                    _card("Figures", "Each run whole; differences are to A.", html.Div(id="replay-summary")),
                    _card("What bounds each run", "In words, with the evidence.", html.Div(id="replay-diagnosis")),
                    _card("Requests", "Filter, sort, pick one.", request_table("replay", _known(services, view))),
                ],
                className="cards one-column lazy",
                **data(store="replay-seen"),
            ),
            dcc.Store(id="replay-seen"),
        ],
        gap="md",
    )  # fmt: skip


def _card(title: str, about: str, content: Any) -> Any:
    return html.Section([html.H3(title), html.P(about, className="words"), content], className="card")


def _known(services: Services, view: View) -> tuple[Run, ...]:
    """The runs of a view; none where one cannot be had (the board says why)."""
    try:
        return services.catalog.runs(view.runs)
    except UserError:
        return ()


def _first(services: Services) -> str:
    keys = [entry.key for entry in services.catalog.entries()]
    given = [key for key in keys if not key.startswith("sample-")]
    return ",".join(given[:1] or [key for key in ("sample-chunked", "sample-chunked-simulated") if key in keys])


def register(app: Dash, services: Services) -> None:
    """Choosing other runs changes the board's view; an upload becomes a choice."""
    register_requests(app, services, "replay", view="board-view")
    app.callback(
        Output("board-view", "data", allow_duplicate=True),
        Input("replay-runs", "value"),
        State("board-view", "data"),
        prevent_initial_call=True,
    )(_choose)
    app.callback(
        Output("replay-runs", "data"),
        Output("replay-runs", "value"),
        Output("replay-said", "children"),
        Input("replay-upload", "contents"),
        State("replay-upload", "filename"),
        State("replay-runs", "value"),
        prevent_initial_call=True,
    )(partial(_uploaded, services))
    app.callback(
        Output("replay-summary", "children"),
        Output("replay-diagnosis", "children"),
        Input("replay-runs", "value"),
        Input("replay-seen", "data"),
    )(partial(_told, services))
    app.callback(Output("replay-against", "children"), Input("replay-runs", "value"), Input("theme", "data"))(
        partial(_compared, services)
    )


def _choose(keys: list[str], fields: dict[str, str]) -> Any:
    chosen = ",".join(keys)
    if chosen == fields.get("run", ""):
        return no_update
    return View.of_query({**fields, "run": chosen}).whole().fields()


def _uploaded(
    services: Services, contents: str | None, filename: str | None, chosen: list[str]
) -> tuple[Any, Any, Any]:
    if not contents:
        return no_update, no_update, no_update
    try:
        upload = services.uploads.add_trace(current_owner(), filename or "trace.zip", decoded(contents))
    except UserError as error:
        return no_update, no_update, str(error)
    keys = [*chosen[: MOST_RUNS - 1], f"u-{upload.id}"]
    return run_choices(services, keys), keys, ""


def decoded(contents: str) -> bytes:
    """The bytes of what a browser uploaded (a data URL). Raises UserError for anything else."""
    try:
        return base64.b64decode(contents.partition(",")[2], validate=True)
    except (binascii.Error, ValueError):
        raise UserError("the upload did not arrive whole; send it again") from None


def _told(services: Services, keys: list[str], seen: Any) -> tuple[Any, Any]:
    """The figures of the runs side by side, and what bounds each, in words; once a reader comes that far."""
    if not keys or not seen:
        return no_update, no_update
    try:
        scene = scene_of(services, {"run": ",".join(keys)}, None, None)
        return summary(scene), dmc.Stack([diagnosis(run) for run in scene.runs], gap="md")
    except UserError:
        return None, None  # the board says what is wrong with a run


def _compared(services: Services, keys: list[str], theme: Any) -> list[Any]:
    """A card for each run that was compared with a measured one."""
    try:
        return cards(scene_of(services, {"run": ",".join(keys or [])}, None, theme))
    except UserError:
        return []  # the board says what is wrong with a run
