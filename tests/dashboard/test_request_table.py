"""The request table as components: names are shown as text, callbacks answer for the run that is chosen."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from dash import Dash

from dashboard.parts.request_table import choices, register, request_table
from scheduler.errors import UserError

from .runs import sample
from .test_summary import _all


class Catalog:
    def run(self, key: str) -> Any:
        if key not in ("chunked", "static"):
            raise UserError("there is no such run")
        return sample(key)


def made() -> tuple[Dash, dict[str, Any]]:
    app = Dash("table")
    register(app, SimpleNamespace(catalog=Catalog()), "page", view="view")  # type: ignore[arg-type]  # a catalog is all it asks
    app.layout = request_table("page", [sample("chunked")])
    app.server.test_client().get("/_dash-dependencies")  # registers the callbacks
    return app, app.callback_map


def ask(output: str, inputs: dict[str, Any], state: dict[str, Any]) -> Any:
    """What a callback answers to a browser."""
    app, known = made()
    key = next(key for key in known if output in key)
    told = known[key]
    values = {**inputs, **state}
    body = {
        "output": key, "changedPropIds": list(inputs),
        "outputs": [{"id": part.split(".")[0], "property": part.split(".")[1]} for part in key.strip(".").split("...")],
        "inputs": [{**part, "value": values[f"{part['id']}.{part['property']}"]} for part in told["inputs"]],
        "state": [{**part, "value": values[f"{part['id']}.{part['property']}"]} for part in told["state"]],
    }  # fmt: skip
    if not key.startswith(".."):
        body["outputs"] = body["outputs"][0]
    answer = app.server.test_client().post("/_dash-update-component", json=body)
    return json.loads(answer.data)["response"] if answer.status_code == 200 else None


def rows_for(key: str) -> Any:
    asked = {"page-requests-grid.getRowsRequest": {"startRow": 0, "endRow": 5}}
    return ask("getRowsResponse", asked, {"page-requests-run.value": key})


def test_the_grid_renders_text_only_and_asks_for_pages() -> None:
    (grid,) = _all(request_table("page", [sample("chunked")]), "AgGrid")
    assert grid.rowModelType == "infinite"
    assert not hasattr(grid, "rowData")
    assert not getattr(grid, "dangerously_allow_code", False)
    assert not any("cellRenderer" in column for column in grid.columnDefs)


def test_rows_are_those_of_the_chosen_run() -> None:
    for key in ("chunked", "static"):
        told = rows_for(key)
        assert told["page-requests-grid"]["getRowsResponse"]["rowCount"] == 36
        assert len(told["page-requests-grid"]["getRowsResponse"]["rowData"]) == 5
    assert told["page-requests-grid"]["getRowsResponse"]["rowData"][0]["tpot"] is None


def test_a_run_that_is_gone_is_an_empty_table_that_says_so() -> None:
    told = rows_for("../../etc")
    assert told["page-requests-grid"]["getRowsResponse"] == {"rowData": [], "rowCount": 0}
    assert told["page-requests-count"]["children"] == "This run is no longer here."


def test_a_picked_row_is_told_with_its_run() -> None:
    told = ask("page-picked-request", {"page-requests-grid.selectedRows": [{"request": 7}]},
               {"page-requests-run.value": "chunked"})  # fmt: skip
    assert told["page-picked-request"]["data"] == {"run": "chunked", "request": 7}


def test_the_whole_table_is_exported() -> None:
    told = ask("page-requests-download", {"page-requests-csv.n_clicks": 1}, {"page-requests-run.value": "chunked"})
    assert told["page-requests-download"]["data"]["content"].count("\n") == 37


def test_the_choice_follows_the_runs_of_the_view() -> None:
    state = {"page-requests-run.data": choices([sample("chunked")]), "page-requests-run.value": "chunked"}
    told = ask("page-requests-run.data", {"page-requests-runs.data": "static,gone,chunked"}, state)
    assert [option["value"] for option in told["page-requests-run"]["data"]] == ["static", "chunked"]
    assert told["page-requests-run"]["value"] == "chunked"
