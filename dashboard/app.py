"""The app: the shell around the pages, their routes, and who is who."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

import dash
import dash_mantine_components as dmc
import flask
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from .board import callbacks as board
from .look import DARK, FONT, LIGHT
from .owner import COOKIE
from .parts.aria import aria
from .services import Services

ACCENT = ["#e8f4fb", "#cfe6f4", "#a3cfe8", "#72b5db", "#4a9fd0", "#2d8dc5", "#0072B2", "#00639c", "#005485", "#003f66"]
"""Ten shades of the accent colour, light to dark, for the controls' library."""
DARKS = ["#e6edf3", "#c3cdd6", "#9aa7b4", "#6b7885", "#3a454f", "#2b343d", "#1f272f", "#1a2128", "#151b21", "#12171c"]
"""Ten shades of the dark theme for the controls' library, text to page."""
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'; font-src 'self' data:; worker-src 'self' blob:; "
    "frame-ancestors 'self'"
)
"""What a browser may load: what this server sends, and nothing from another host."""
KEYS = (
    ("Space", "play or pause"),
    ("← →", "one step back or on"),
    ("Shift + ← →", "ten steps back or on"),
    ("[ ]", "slower or faster"),
    ("?", "this list"),
)


def create_app(services: Services) -> Dash:
    """The dashboard as a Dash app; `app.server` is the WSGI application."""
    from .pages import PAGES, home

    app = Dash(
        __name__,
        use_pages=True,
        pages_folder="",
        suppress_callback_exceptions=True,  # a page's controls are there only while it is shown
        title="batchscope",
        update_title="",
        serve_locally=True,
        add_log_handler=False,
    )
    _guard(app.server)
    modules: tuple[ModuleType, ...] = (home, *PAGES)
    dash.page_registry.clear()  # it is global to the process: a second app must not inherit the first one's pages
    for order, page in enumerate(modules):
        dash.register_page(
            page.__name__, path=page.PATH, title=f"{page.TITLE} · batchscope", name=page.TITLE, order=order,
            layout=partial(_page, page, services),
        )  # fmt: skip
        page.register(app, services)
    nowhere = html.Main(["There is no such page. ", dcc.Link("Start", href="/")], className="page")
    dash.register_page("not_found_404", layout=nowhere)
    app.layout = _shell([(page.TITLE, page.PATH) for page in PAGES])
    board.register(app, services)
    _shell_callbacks(app)
    return app


def _page(page: ModuleType, services: Services, **query: Any) -> Any:
    return html.Main(page.layout(services, **query), className="page", id="page")


def _shell(pages: list[tuple[str, str]]) -> Any:
    return dmc.MantineProvider(
        id="mantine",
        theme={
            "primaryColor": "scope",
            "colors": {"scope": ACCENT, "dark": DARKS},
            "primaryShade": {"light": 6, "dark": 4},
            "fontFamily": FONT,
            "defaultRadius": "md",
        },
        children=[
            dcc.Location(id="address", refresh="callback-nav"),
            dcc.Store(id="theme", storage_type="local"),
            dcc.Store(id="theme-start"),
            _header(pages),
            dash.page_container,
            _help(),
        ],
    )


def _header(pages: list[tuple[str, str]]) -> Any:
    links = [
        dcc.Link(title, href=path, className="nav-link", id={"type": "nav", "path": path}) for title, path in pages
    ]
    return html.Header(
        [
            dcc.Link([html.Span(className="logo", **aria(hidden="true")), "batchscope"], href="/", className="brand"),
            html.Nav(links, className="nav", **aria(label="Pages")),
            dmc.Group(
                [
                    dmc.ActionIcon("?", id="help-open", variant="subtle", **aria(label="Keys")),
                    dmc.ActionIcon("◐", id="theme-switch", variant="subtle", **aria(label="Light or dark")),
                ],
                gap=4,
                wrap="nowrap",
            ),
        ],
        className="header",
    )


def _help() -> Any:
    rows = [html.Tr([html.Td(dmc.Kbd(keys)), html.Td(what)]) for keys, what in KEYS]
    more = (
        "Drag over a figure to zoom in, double-click to see all, click to set the cursor. The address holds the view."
    )
    return dmc.Modal(
        [html.Table(rows, className="keys"), dmc.Text(more, size="sm", c="dimmed", mt="md")],
        id="help", title="Keys", opened=False,
    )  # fmt: skip


def _shell_callbacks(app: Dash) -> None:
    shell = partial(ClientsideFunction, "shell")
    app.clientside_callback(
        shell("switch"), Output("theme", "data"), Input("theme-switch", "n_clicks"), State("theme", "data")
    )
    app.clientside_callback(shell("scheme"), Output("mantine", "forceColorScheme"), Input("theme", "data"))
    app.clientside_callback(
        shell("help"), Output("help", "opened"), Input("help-open", "n_clicks"), State("help", "opened"),
        prevent_initial_call=True,
    )  # fmt: skip
    app.clientside_callback(
        shell("here"), Output({"type": "nav", "path": dash.ALL}, "className"), Input("address", "pathname"),
        State({"type": "nav", "path": dash.ALL}, "id"),
    )  # fmt: skip


def _guard(server: flask.Flask) -> None:
    """Every answer carries the policy; every browser gets a name of its own, so that lists show a person's own runs."""
    server.config["MAX_CONTENT_LENGTH"] = 64 << 20
    server.config["MAX_FORM_MEMORY_SIZE"] = 64 << 20

    @server.before_request
    def _who() -> None:
        known = flask.request.cookies.get(COOKIE, "")
        flask.g.owner = known if 20 <= len(known) <= 64 else secrets.token_urlsafe(24)
        flask.g.is_new = flask.g.owner != known

    @server.after_request
    def _finish(response: flask.Response) -> flask.Response:
        if flask.g.get("is_new"):
            response.set_cookie(COOKIE, flask.g.owner, max_age=365 * 86400, httponly=True, samesite="Lax")
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        return response


def themed(theme: Mapping[str, Any] | str | None) -> str:
    """The name of the theme in the store; the light one before a browser has said."""
    return DARK.name if theme == DARK.name else LIGHT.name
