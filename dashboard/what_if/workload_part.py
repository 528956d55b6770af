"""The workload's part of a form: a preset, a generator or an upload, with a preview of the very requests."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, MATCH, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboard.look import look_named
from dashboard.owner import current_owner
from dashboard.parts.aria import aria
from dashboard.runs.uploads import Uploads
from dashboard.runs.workload_spec import generate_defaults
from dashboard.services import Services
from scheduler.errors import ConfigError, UserError
from traces.presets import PRESETS

from . import preview, words

_TITLES = {
    "arrivals": "Arrivals",
    "prompt": "Prompt tokens",
    "output": "Output tokens",
    "prefixes": "Shared prefixes",
    "sessions": "Conversations",
}
_QUIET: Any = {"displayModeBar": False, "responsive": True}


def workload_part(page: str, spec: Mapping[str, Any]) -> Any:
    """The card. The workload as it is shown stands in the store ``{"type": "workload-spec", "page": page}``.

    Args:
        page: prefix of its ids.
        spec: what to begin with, as for `dashboard.runs.workload_spec.workload_of`.
    """
    kind = spec["kind"] if spec["kind"] in ("preset", "generate", "upload") else "own"
    kinds = [("preset", "Preset"), ("generate", "Generator"), ("upload", "Upload")]
    if kind == "own":
        kinds.append(("own", "As given"))
    return html.Section(
        [
            html.Div(
                [
                    html.H3("Workload"),
                    dmc.SegmentedControl(
                        id={"type": "workload-kind", "page": page}, value=kind, size="xs",
                        data=[{"value": value, "label": label} for value, label in kinds],
                    ),
                ],
                className="card-top",
            ),
            *[
                html.Div(made, id={"type": f"workload-{name}", "page": page}, **_shown(kind == name))
                for name, made in (
                    ("preset", _preset(page, spec)),
                    ("generate", _generate(page, spec)),
                    ("upload", _upload(page, spec)),
                    ("own", _own_words(spec)),
                )
            ],
            dcc.Store(id={"type": "workload-given", "page": page}, data=dict(spec)),
            dcc.Store(id={"type": "workload-spec", "page": page}, data=dict(spec)),
            html.P("", id={"type": "workload-told", "page": page}, className="words", **aria(live="polite")),
            html.Div(
                [_graph(page, "arrivals", "When requests arrive"), _graph(page, "lengths", "How long they are")],
                className="previews",
            ),
        ],
        className="card",
    )  # fmt: skip


def register(app: Dash, services: Services, page: str) -> None:
    """The part's callbacks for one page; the page has a seed in ``{page}-seed``."""
    _register_kind(app, page)
    _register_fields(app, page)
    _register_upload(app, services, page)
    _register_spec(app, page)
    _register_preview(app, services, page)


def _preset(page: str, spec: Mapping[str, Any]) -> Any:
    name = spec["name"] if spec["kind"] == "preset" else "default"
    options = [{"value": key, "label": f"{key}: {preset.about}"} for key, preset in PRESETS.items()]
    if name not in PRESETS:
        options.append({"value": name, "label": name})
    return html.Div(
        [
            dmc.Select(
                id={"type": "workload-name", "page": page}, data=options, value=name, label="Preset",
                allowDeselect=False, size="xs", className="wide",
            ),
            *_size(page, "preset", spec if spec["kind"] == "preset" else {}),
        ],
        className="fields",
    )  # fmt: skip


def _size(page: str, kind: str, spec: Mapping[str, Any]) -> list[Any]:
    def of(name: str) -> dict[str, str]:
        return {"type": "workload-size", "page": page, "kind": kind, "name": name}

    return [
        dmc.NumberInput(
            id=of("requests"), value=spec.get("requests", ""), label="Requests", placeholder="all", min=1,
            allowDecimal=False, size="xs", debounce=400, thousandSeparator=",", hideControls=True,
        ),
        dmc.NumberInput(
            id=of("rate"), value=spec.get("rate", ""), label="Requests a second", placeholder="as they are", min=0,
            size="xs", debounce=400, hideControls=True,
        ),
    ]  # fmt: skip


def _generate(page: str, spec: Mapping[str, Any]) -> Any:
    given = {**generate_defaults(), **(spec if spec["kind"] == "generate" else {})}
    count = dmc.NumberInput(
        id={"type": "workload-count", "page": page}, value=given["requests"], label="Requests", min=1,
        allowDecimal=False, size="xs", debounce=400, thousandSeparator=",", hideControls=True,
    )  # fmt: skip
    limit = dmc.NumberInput(
        id={"type": "workload-limit", "page": page}, value=given["max_tokens"] or "", label="max_tokens", min=0,
        placeholder="their output", allowDecimal=False, size="xs", debounce=400, thousandSeparator=",",
        hideControls=True,
    )  # fmt: skip
    return [_part(page, part, given.get(part, "")) for part in words.KINDS] + [
        html.Div([count, limit], className="fields")
    ]


def _part(page: str, part: str, text: str) -> Any:
    try:
        kind, values = words.part_of(part, text)
    except ConfigError:  # the told line says what is wrong with the spec as it is
        kind, values = _first_kind(part), {}
        values = words.start_values(part, kind)
    names = [*([words.NONE] if part in words.OPTIONAL else []), *words.KINDS[part]]
    labels = {words.NONE: "none", "prefixes": "some begin alike", "sessions": "several turns each"}
    return html.Div(
        [
            dmc.Select(
                id={"type": "workload-part-kind", "page": page, "part": part}, value=kind, label=_TITLES[part],
                data=[{"value": name, "label": labels.get(name, name)} for name in names], allowDeselect=False,
                size="xs",
            ),
            html.Div(
                _numbers(page, part, kind, values), id={"type": "workload-part-fields", "page": page, "part": part},
                className="inline",
            ),
        ],
        className="fields part",
    )  # fmt: skip


def _first_kind(part: str) -> str:
    return words.NONE if part in words.OPTIONAL else next(iter(words.KINDS[part]))


def _numbers(page: str, part: str, kind: str, values: Mapping[str, Any]) -> list[Any]:
    defaults = words.default_values(part, kind)
    return [
        dmc.NumberInput(
            id={"type": "workload-number", "page": page, "part": part, "name": name},
            value=values.get(name, "") if values.get(name) != defaults.get(name) else "",
            placeholder="" if name not in defaults else f"{defaults[name]:,}", label=name, size="xs", debounce=400,
            thousandSeparator=",", hideControls=True,
        )
        for name in words.field_names(part, kind)
    ]  # fmt: skip


def _upload(page: str, spec: Mapping[str, Any]) -> Any:
    ident = spec["id"] if spec["kind"] == "upload" else ""
    return html.Div(
        [
            dcc.Upload(
                html.Span(["Drop a workload here, or ", html.Span("choose a file", className="as-link"), "."]),
                id={"type": "workload-file", "page": page}, className="drop", max_size=-1, multiple=False,
            ),
            html.P("CSV or JSON lines of any format that batchscope reads.", className="words",
                   id={"type": "workload-file-told", "page": page}),
            dcc.Store(id={"type": "workload-file-id", "page": page}, data=ident),
            html.Div(_size(page, "upload", spec if ident else {}), className="fields"),
        ]
    )  # fmt: skip


def _own_words(spec: Mapping[str, Any]) -> str:
    if spec["kind"] == "mix":
        return f"{len(spec.get('parts', ()))} kinds of requests, mixed in order of arrival."
    return "Requests written out one by one."


def _graph(page: str, what: str, title: str) -> Any:
    return html.Div(
        dcc.Graph(id={"type": "workload-figure", "page": page, "what": what}, config=_QUIET,
                  style={"height": f"{preview.HEIGHT}px"}),
        role="figure",
        **aria(label=title),
    )  # fmt: skip


def _shown(shown: bool) -> dict[str, Any]:
    return {"style": {"display": "block" if shown else "none"}}


def _register_kind(app: Dash, page: str) -> None:
    @app.callback(
        [
            Output({"type": f"workload-{kind}", "page": page}, "style")
            for kind in ("preset", "generate", "upload", "own")
        ],
        Input({"type": "workload-kind", "page": page}, "value"),
        prevent_initial_call=True,
    )
    def _choose(chosen: str) -> list[Any]:
        return [_shown(kind == chosen)["style"] for kind in ("preset", "generate", "upload", "own")]


def _register_fields(app: Dash, page: str) -> None:
    @app.callback(
        Output({"type": "workload-part-fields", "page": page, "part": MATCH}, "children"),
        Input({"type": "workload-part-kind", "page": page, "part": MATCH}, "value"),
        prevent_initial_call=True,
    )
    def _fields(kind: str) -> Any:
        part = str(ctx.triggered_id["part"]) if ctx.triggered_id else ""
        if part not in words.KINDS or kind not in (words.NONE, *words.KINDS[part]):
            return no_update
        return _numbers(page, part, kind, words.start_values(part, kind))


def _register_upload(app: Dash, services: Services, page: str) -> None:
    @app.callback(
        Output({"type": "workload-file-id", "page": page}, "data"),
        Output({"type": "workload-file-told", "page": page}, "children"),
        Input({"type": "workload-file", "page": page}, "contents"),
        State({"type": "workload-file", "page": page}, "filename"),
        prevent_initial_call=True,
    )
    def _take(contents: str | None, filename: str | None) -> Any:
        if not contents:
            return no_update, no_update
        try:
            return _stored(services.uploads, contents, filename or "upload")
        except UserError as error:
            return no_update, str(error)


def _stored(uploads: Uploads, contents: str, filename: str) -> tuple[str, str]:
    try:
        data = base64.b64decode(contents.partition(",")[2], validate=True)
    except binascii.Error as error:
        raise UserError(f"{filename}: it did not arrive whole; send it again") from error
    upload = uploads.add_workload(current_owner(), filename, data)
    return upload.id, f"{upload.name}: {upload.requests:,} requests."


def _register_spec(app: Dash, page: str) -> None:
    def on(what: str, /, **more: Any) -> dict[str, Any]:
        return {"type": what, "page": page, **more}

    @app.callback(
        Output(on("workload-spec"), "data"),
        Input(on("workload-kind"), "value"),
        Input(on("workload-name"), "value"),
        Input(on("workload-size", kind=ALL, name=ALL), "value"),
        Input(on("workload-count"), "value"),
        Input(on("workload-limit"), "value"),
        Input(on("workload-part-kind", part=ALL), "value"),
        Input(on("workload-number", part=ALL, name=ALL), "value"),
        Input(on("workload-file-id"), "data"),
        State(on("workload-given"), "data"),
        prevent_initial_call=True,
    )
    def _collect(kind: str, name: str, *values: Any) -> Any:
        own, file = values[-1], values[-2]
        return own if kind == "own" else spec_of(kind, name, file, ctx.inputs_list)


def spec_of(kind: str, name: str, file: str, inputs: list[Any]) -> dict[str, Any]:
    """The spec that the part's fields mean, from Dash's list of the inputs in the order of `_register_spec`."""
    sizes, count, limit, kinds, numbers = inputs[2:7]
    if kind == "generate":
        asked = {item["id"]["part"]: item.get("value") for item in kinds}
        return _generated(count.get("value"), limit.get("value"), asked, numbers)
    size = {
        item["id"]["name"]: _given(item["id"]["name"], item.get("value"))
        for item in sizes
        if item["id"]["kind"] == kind and item.get("value") not in (None, "")
    }
    return {"kind": kind, **({"name": name} if kind == "preset" else {"id": file or ""}), **size}


def _given(name: str, value: Any) -> Any:
    """A number as the spec takes it: requests are whole."""
    return float(value) if name == "rate" and isinstance(value, int | float) else value


def _generated(count: Any, limit: Any, kinds: Mapping[str, Any], numbers: list[Any]) -> dict[str, Any]:
    """The spec of the generator's fields."""
    spec: dict[str, Any] = {"kind": "generate", "requests": count}
    for part, kind in kinds.items():
        values = {item["id"]["name"]: item.get("value") for item in numbers if item["id"]["part"] == part}
        spec[part] = words.part_text(part, str(kind), values)
    return {**{name: value for name, value in spec.items() if value != ""}, **({"max_tokens": limit} if limit else {})}


def _register_preview(app: Dash, services: Services, page: str) -> None:
    @app.callback(
        Output({"type": "workload-figure", "page": page, "what": "arrivals"}, "figure"),
        Output({"type": "workload-figure", "page": page, "what": "lengths"}, "figure"),
        Output({"type": "workload-told", "page": page}, "children"),
        Output({"type": "workload-told", "page": page}, "className"),
        Input({"type": "workload-spec", "page": page}, "data"),
        Input(f"{page}-seed", "value"),
        Input("theme", "data"),
    )
    def _show(spec: Mapping[str, Any], seed: Any, theme: Any) -> Any:
        if spec["kind"] == "upload" and not spec.get("id"):
            return no_update, no_update, "Choose a file.", "words"
        try:
            made = preview.workload_shown(spec, services.uploads, seed if isinstance(seed, int) and seed >= 0 else 0)
        except UserError as error:
            return no_update, no_update, str(error), "words fault"
        look = look_named(theme)
        figures = preview.arrivals_figure(made, look), preview.lengths_figure(made, look)
        return *figures, preview.stats_line(made), "words"
