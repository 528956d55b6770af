"""Dash's HTML components as HTML text, so that a file can hold what a page shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from dash.development.base_component import Component

_NAMES = {"className": "class"}
_EMPTY = frozenset({"br", "hr", "img"})
"""Elements without an end."""
_CAPITAL = re.compile("[A-Z]")


def markup(part: Any) -> str:
    """The HTML of a component of `dash.html`, of text or a number, or of a list of such; all text is escaped.

    Raises:
        TypeError: a component of another library: only a browser can make those.
    """
    if part is None:
        return ""
    if isinstance(part, list | tuple):
        return "".join(markup(inner) for inner in part)
    if isinstance(part, Component):
        return _element(part)
    return escape(str(part))


def _element(component: Component) -> str:
    told = component.to_plotly_json()
    if told["namespace"] != "dash_html_components":
        raise TypeError(f"{told['namespace']}.{told['type']} cannot be written as HTML; expected one of dash.html")
    name = told["type"].lower()
    attributes = {key: value for key, value in told["props"].items() if key not in ("children", "n_clicks")}
    opened = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return opened if name in _EMPTY else f"{opened}{markup(getattr(component, 'children', None))}</{name}>"


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    text = _style(value) if key == "style" else str(value)
    return f' {_NAMES.get(key, key.lower())}="{escape(text)}"'


def _style(rules: Mapping[str, Any]) -> str:
    return "; ".join(f"{_CAPITAL.sub(_lowered, name)}: {value}" for name, value in rules.items())


def _lowered(capital: re.Match[str]) -> str:
    return f"-{capital.group().lower()}"
