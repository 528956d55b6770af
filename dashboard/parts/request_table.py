"""The table of a run's requests: filtered and sorted here, sent to the browser page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboard.data.request_rows import COLUMNS, csv_of, page_of, rows_of
from dashboard.data.run import Run
from dashboard.parts.aria import aria
from dashboard.scene import run_label
from dashboard.services import Services
from dashboard.view import View
from scheduler.errors import UserError

HEIGHT = 430
BLOCK = 100
"""Rows the browser asks for at a time."""
_THEME = (
    "themeQuartz.withParams({backgroundColor: 'var(--card)', foregroundColor: 'var(--ink)', "
    "headerBackgroundColor: 'var(--card)', headerTextColor: 'var(--muted)', borderColor: 'var(--line)', "
    "accentColor: 'var(--accent)', browserColorScheme: 'inherit', fontFamily: 'inherit', fontSize: 13, "
    "wrapperBorderRadius: 8, spacing: 6})"
)
_RUNS = """(view, known) => {
  const runs = (view && view.run) || "";
  return runs === known ? window.dash_clientside.no_update : runs;
}"""
_PURGE = """async (run, id) => {
  const grid = await dash_ag_grid.getApiAsync(id);
  grid.deselectAll();
  grid.purgeInfiniteCache();
  return window.dash_clientside.no_update;
}"""


def request_table(page: str, runs: Sequence[Run]) -> Any:
    """The table, the choice of its run and a button for CSV.

    The request that a reader picks is in the store ``PAGE-picked-request``: ``{"run": key, "request": number}``.

    Args:
        page: prefix of ids.
        runs: whose requests can be shown; the first is.
    """
    options = choices(runs)
    return html.Div(
        [
            html.Div(
                [
                    dmc.Select(
                        id=f"{page}-requests-run", data=options, value=options[0]["value"] if options else None,
                        allowDeselect=False, size="xs", w=280, **aria(label="Run whose requests are shown"),
                    ),
                    html.Span(id=f"{page}-requests-count", className="words"),
                    dmc.Button("CSV", id=f"{page}-requests-csv", size="compact-xs", variant="subtle",
                               **aria(label="All requests of this run as CSV")),
                ],
                className="bar",
                style={"position": "static", "background": "none", "padding": "0 0 8px"},
            ),
            _grid(page),
            dcc.Store(id=f"{page}-picked-request"),
            dcc.Store(id=f"{page}-requests-purged"),
            dcc.Store(id=f"{page}-requests-runs"),
            dcc.Download(id=f"{page}-requests-download"),
        ],
        className="request-table",
    )  # fmt: skip


def choices(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Options of the choice of a run."""
    return [{"value": run.key, "label": run_label(runs, index)} for index, run in enumerate(runs)]


def _grid(page: str) -> Any:
    return dag.AgGrid(
        id=f"{page}-requests-grid",
        rowModelType="infinite",
        columnDefs=[_column(name) for name in COLUMNS],
        defaultColDef={"sortable": True, "resizable": True, "minWidth": 92, "flex": 1, "floatingFilter": False},
        dashGridOptions={
            "theme": {"function": _THEME},
            "cacheBlockSize": BLOCK,
            "maxBlocksInCache": 20,
            "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
            "suppressMultiSort": False,
            "animateRows": False,
        },
        getRowId="'' + params.data.request",
        style={"height": HEIGHT, "width": "100%"},
    )


def _column(name: str) -> dict[str, Any]:
    """How the grid shows a column; text stays text: nothing is rendered as HTML or Markdown."""
    column = COLUMNS[name]
    shown: dict[str, Any] = {"field": name, "headerName": column.title, "headerTooltip": column.meaning}
    if column.text:
        return {**shown, "filter": "agTextColumnFilter", "minWidth": 110}
    digits = ",.3f" if column.seconds else ",d"
    formatter = f"params.value == null ? '–' : d3.format('{digits}')(params.value)"
    return {
        **shown,
        "filter": "agNumberColumnFilter",
        "type": "rightAligned",
        "valueFormatter": {"function": formatter},
    }


def register(app: Dash, services: Services, page: str, view: str | None = None) -> None:
    """Answer a page's table.

    Args:
        app: the app.
        services: where runs are found.
        page: prefix of ids.
        view: id of a store with the fields of a `View`, whose runs the table shall offer; None: those it began with.
    """
    _register_rows(app, services, page)
    _register_pick(app, page)
    _register_csv(app, services, page)
    app.clientside_callback(
        _PURGE,
        Output(f"{page}-requests-purged", "data"),
        Input(f"{page}-requests-run", "value"),
        State(f"{page}-requests-grid", "id"),
        prevent_initial_call=True,
    )
    if view is not None:
        _register_runs(app, services, page, view)


def _register_rows(app: Dash, services: Services, page: str) -> None:
    @app.callback(
        Output(f"{page}-requests-grid", "getRowsResponse"),
        Output(f"{page}-requests-count", "children"),
        Input(f"{page}-requests-grid", "getRowsRequest"),
        State(f"{page}-requests-run", "value"),
    )
    def _rows(asked: Mapping[str, Any] | None, key: str | None) -> Any:
        if asked is None:
            return no_update, no_update
        run = _run(services, key)
        if run is None:
            return {"rowData": [], "rowCount": 0}, "This run is no longer here."
        found = page_of(run, asked)
        return {"rowData": found.rows, "rowCount": found.matching}, found.said


def _register_pick(app: Dash, page: str) -> None:
    @app.callback(
        Output(f"{page}-picked-request", "data"),
        Input(f"{page}-requests-grid", "selectedRows"),
        State(f"{page}-requests-run", "value"),
        prevent_initial_call=True,
    )
    def _pick(rows: list[dict[str, Any]] | None, key: str | None) -> Any:
        return {"run": key, "request": rows[0]["request"]} if rows else None


def _register_csv(app: Dash, services: Services, page: str) -> None:
    @app.callback(
        Output(f"{page}-requests-download", "data"),
        Input(f"{page}-requests-csv", "n_clicks"),
        State(f"{page}-requests-run", "value"),
        prevent_initial_call=True,
    )
    def _download(clicks: int | None, key: str | None) -> Any:
        run = _run(services, key)
        if not clicks or run is None:
            return no_update
        return {"content": csv_of(rows_of(run)), "filename": "batchscope-requests.csv", "type": "text/csv"}


def _register_runs(app: Dash, services: Services, page: str, view: str) -> None:
    app.clientside_callback(  # the server is asked only when the runs change, not at each zoom
        _RUNS, Output(f"{page}-requests-runs", "data"), Input(view, "data"), State(f"{page}-requests-runs", "data")
    )

    @app.callback(
        Output(f"{page}-requests-run", "data"),
        Output(f"{page}-requests-run", "value"),
        Input(f"{page}-requests-runs", "data"),
        State(f"{page}-requests-run", "data"),
        State(f"{page}-requests-run", "value"),
    )
    def _offer(runs: str | None, known: list[dict[str, str]], chosen: str | None) -> Any:
        if runs is None:  # the browser has not said yet
            return no_update, no_update
        keys = View.of_query({"run": runs}).runs
        if list(keys) == [option["value"] for option in known or []]:
            return no_update, no_update
        options = choices([run for run in (_run(services, key) for key in keys) if run is not None])
        values = [option["value"] for option in options]
        return options, chosen if chosen in values else next(iter(values), None)


def _run(services: Services, key: str | None) -> Run | None:
    """The run of a key; None where there is none any more."""
    try:
        return None if key is None else services.catalog.run(key)
    except UserError:
        return None
