"""Step inspector: one step of a run, or requests typed in by hand, laid open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboard.data.run import Run
from dashboard.inspector.aria import labelled
from dashboard.inspector.recorded import facts_of_step
from dashboard.inspector.show import show
from dashboard.inspector.typed import EXAMPLES, FIELDS, MOST_REQUESTS, MOST_TEXT, Form, FormError, Line, read_form
from dashboard.look import look_named
from dashboard.parts.run_list import run_choices
from dashboard.services import Services
from dashboard.view import View
from scheduler.errors import UserError

PATH = "/inspect"
TITLE = "Step inspector"
_LABELS = {
    "name": "Request",
    "tokens": "Tokens: words, ids or ranges",
    "computed": "Computed",
    "scheduled": "Scheduled",
    "blocks": "Blocks (empty: allotted)",
}
_COLUMNS = "minmax(56px, 0.5fr) minmax(150px, 2.2fr) minmax(64px, 0.6fr) minmax(64px, 0.6fr) minmax(110px, 1.2fr) 32px"
# The address follows what is shown without telling the router: a page that is already right need not be made again.
_KEEP_ADDRESS = """function (query) {
    if (query && window.location.pathname.endsWith("/inspect")) {
        window.history.replaceState(window.history.state, "", window.location.pathname + query);
    }
    return "";
}"""


def layout(services: Services, **query: Any) -> Any:
    """The form of the address, and a place for the step."""
    view = View.of_query(query)
    by_hand = query.get("mode") == "hand" or not view.runs
    form = Form.of_query(query if by_hand else {})
    return dmc.Stack(
        [
            html.Div(
                [
                    html.H1(TITLE),
                    dmc.SegmentedControl(
                        id="inspect-mode", value="hand" if by_hand else "run",
                        data=[{"value": "hand", "label": "Typed in by hand"},
                              {"value": "run", "label": "A step of a run"}],
                    ),
                ],
                className="page-head",
            ),
            html.Div(_hand(form), id="inspect-hand", className="card", style=_shown(by_hand)),
            html.Div(_run(services, view), id="inspect-run-part", className="card", style=_shown(not by_hand)),
            html.Div(id="inspect-shown", className="board", role="status"),
            dcc.Store(id="inspect-query"),
            html.Div(id="inspect-address", hidden=True),
        ],
        gap="md",
    )  # fmt: skip


def register(app: Dash, services: Services) -> None:
    """The form's and the step's callbacks."""
    app.clientside_callback(_KEEP_ADDRESS, Output("inspect-address", "children"), Input("inspect-query", "data"))
    _register_form(app)
    _register_run(app, services)
    _register_step(app, services)


def _register_form(app: Dash) -> None:
    @app.callback(
        Output("inspect-lines", "children"),
        Output("inspect-block-size", "value"),
        Input("inspect-add", "n_clicks"),
        Input("inspect-example", "value"),
        Input({"type": "inspect-remove", "row": ALL}, "n_clicks"),
        State({"type": "inspect-field", "field": ALL, "row": ALL}, "value"),
        State("inspect-block-size", "value"),
        prevent_initial_call=True,
    )
    def _change(added: int | None, example: str | None, removed: list[int | None], values: list[Any], size: Any) -> Any:
        trigger = ctx.triggered_id
        if trigger == "inspect-example":
            form = EXAMPLES[example].form if example in EXAMPLES else EXAMPLES["abc"].form
            return _lines(form), form.block_size
        if trigger == "inspect-add" and added:
            return _lines(_with_line(_form_of(values, size))), no_update
        if any(removed):
            form = _form_of(values, size)
            kept = tuple(line for at, line in enumerate(form.lines) if at != trigger["row"])
            return _lines(Form(kept or form.lines, form.block_size)), no_update
        return no_update, no_update


def _register_run(app: Dash, services: Services) -> None:
    @app.callback(
        Output("inspect-step", "value"),
        Output("inspect-step-note", "children"),
        Input("inspect-run", "value"),
        Input("inspect-back", "n_clicks"),
        Input("inspect-on", "n_clicks"),
        State("inspect-step", "value"),
    )
    def _move(key: str | None, back: int | None, on: int | None, step: Any) -> Any:
        if not key:
            return no_update, "Choose a run."
        try:
            run = services.catalog.run(key)
        except UserError:
            return no_update, ""  # the step's own callback says why
        first, last = _ends(run)
        here = step if isinstance(step, int) else first
        moved = here + {"inspect-back": -1, "inspect-on": 1}.get(str(ctx.triggered_id), 0)
        moved = min(max(moved, first), last)
        return no_update if moved == step else moved, f"Steps {first:,} to {last:,}."


def _register_step(app: Dash, services: Services) -> None:
    @app.callback(
        Output("inspect-shown", "children"),
        Output({"type": "inspect-field", "field": ALL, "row": ALL}, "error"),
        Output("inspect-block-size", "error"),
        Output("inspect-hand", "style"),
        Output("inspect-run-part", "style"),
        Output("inspect-query", "data"),
        Input("inspect-mode", "value"),
        Input({"type": "inspect-field", "field": ALL, "row": ALL}, "value"),
        Input("inspect-block-size", "value"),
        Input("inspect-run", "value"),
        Input("inspect-step", "value"),
        Input("theme", "data"),
    )
    def _show(mode: str, values: list[Any], size: Any, key: str | None, step: Any, theme: Any) -> Any:
        by_hand = mode != "run"
        form = _form_of(values, size)
        errors: Mapping[tuple[int, str], str] = {}
        cards: list[Any] = []
        problem = ""
        try:
            facts = read_form(form) if by_hand else _step_of(services, key, step)
            cards = show(facts, look_named(theme))
        except FormError as error:
            errors = error.fields
            problem = "" if errors else str(error)
        except UserError as error:
            problem = str(error)
        beside = [_sentence(errors.get((row, name), "")) for row in range(len(form.lines)) for name in FIELDS]
        query = form.query() if by_hand else View(runs=(key,) if key else (), step=_whole(step)).query()
        size_error = _sentence(errors.get((-1, "block_size"), ""))
        shown = [*_alert(problem, bool(errors)), *cards]
        return shown, beside, size_error, _shown(by_hand), _shown(not by_hand), query


def _step_of(services: Services, key: str | None, step: Any) -> Any:
    if not key:
        raise UserError("Choose a run to see one of its steps.")
    run = services.catalog.run(key)
    number = _whole(step)
    return facts_of_step(run, _ends(run)[0] if number is None else number)


def _ends(run: Run) -> tuple[int, int]:
    steps = run.column("steps", "step")
    return (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)


def _whole(step: Any) -> int | None:
    return step if isinstance(step, int) and step >= 0 else None


def _form_of(values: Sequence[Any], size: Any) -> Form:
    texts = ["" if value is None else str(value)[:MOST_TEXT] for value in values]
    width = len(FIELDS)
    lines = tuple(Line(*texts[at : at + width]) for at in range(0, len(texts) - width + 1, width))
    return Form(lines[:MOST_REQUESTS], "" if size is None else str(size))


def _with_line(form: Form) -> Form:
    if len(form.lines) >= MOST_REQUESTS:
        return form
    names = {line.name for line in form.lines}
    name = next((name for name in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if name not in names), "")
    # the newcomer of the worked example: a prompt of nine tokens, all of it in this step
    return Form((*form.lines, Line(name, "400-408", "0", "9", "")), form.block_size)


def _hand(form: Form) -> list[Any]:
    return [
        dmc.Group(
            [
                dmc.Select(
                    id="inspect-example", label="Start from an example", placeholder="Choose", w=290, clearable=False,
                    data=[{"value": key, "label": example.title} for key, example in EXAMPLES.items()],
                ),
                dmc.TextInput(id="inspect-block-size", label="Block size, tokens", value=form.block_size, w=210,
                              debounce=400),
                dmc.Button("Add a request", id="inspect-add", variant="default", mt=22),
            ],
            align="flex-start", gap="md", className="inspect-top",
        ),
        html.Div(
            html.Div(_lines(form), id="inspect-lines", style={"minWidth": "560px"}),
            style={"overflowX": "auto", "marginTop": "10px"},
        ),
    ]  # fmt: skip


def _lines(form: Form) -> list[Any]:
    """One line of fields a request, under one line of labels."""
    head = html.Div([dmc.Text(_LABELS[name], size="xs", c="dimmed") for name in FIELDS], style=_grid())
    return [head, *(html.Div(_fields(at, line), style=_grid()) for at, line in enumerate(form.lines))]


def _fields(at: int, line: Line) -> list[Any]:
    boxes = [
        dmc.TextInput(
            id={"type": "inspect-field", "field": name, "row": at}, value=getattr(line, name), size="sm", debounce=400,
            **labelled(f"{_LABELS[name]} of request {line.name or at}"),
        )
        for name in FIELDS
    ]  # fmt: skip
    remove = dmc.ActionIcon("×", id={"type": "inspect-remove", "row": at}, variant="subtle", color="gray", mt=3,
                            **labelled(f"Remove request {line.name or at}"))  # fmt: skip
    return [*boxes, remove]


def _run(services: Services, view: View) -> list[Any]:
    return [
        dmc.Group(
            [
                dmc.Select(id="inspect-run", label="Run", data=run_choices(services, view.runs[:1]),
                           value=next(iter(view.runs), None),
                           searchable=True, placeholder="Choose a run", w=320),
                dmc.NumberInput(id="inspect-step", label="Step", value=0 if view.step is None else view.step, min=0,
                                allowDecimal=False, allowNegative=False, w=130, debounce=300),
                dmc.Group([dmc.Button("Back", id="inspect-back", variant="default"),
                           dmc.Button("Next", id="inspect-on", variant="default")], gap=6),
                dmc.Text(id="inspect-step-note", size="sm", c="dimmed", mb=8),
            ],
            align="flex-end", gap="md",
        )
    ]  # fmt: skip


def _alert(problem: str, in_form: bool) -> list[Any]:
    if in_form:
        problem = "Nothing is drawn until the fields marked above are right."
    return [dmc.Alert(_sentence(problem), color="orange", variant="light")] if problem else []


def _sentence(text: str) -> str:
    """An error's text as it stands by itself."""
    return text[:1].upper() + text[1:]


def _grid() -> dict[str, str]:
    return {"display": "grid", "gridTemplateColumns": _COLUMNS, "gap": "6px", "alignItems": "start", "marginTop": "4px"}


def _shown(visible: bool) -> dict[str, str]:
    return {} if visible else {"display": "none"}
