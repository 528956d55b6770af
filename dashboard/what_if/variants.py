"""Variant cards: what each of the runs to compare sets, and how it differs from A."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.look import MOST_RUNS, RUN_NAMES
from dashboard.parts.aria import aria
from dashboard.scenario import Variant
from simulator.options import DERIVED

from .query import Form
from .settings import MAIN, SHARED, Setting, difference, settings


def variant_cards(page: str, form: Form, *, alone: bool = False) -> list[Any]:
    """A card for each variant.

    Args:
        page: prefix of the ids.
        form: what they show.
        alone: there is one set of settings only, without a name, a copy or a removal.
    """
    return [
        _card(page, letter, variant, len(form.variants), alone)
        for letter, variant in zip(RUN_NAMES, form.variants, strict=False)
    ]


def shared_fields(page: str, shared: Mapping[str, Any]) -> list[Any]:
    """Model, hardware and cost model."""
    known = settings()
    return [_field(page, "*", known[name], shared, required=True) for name in SHARED]


def variants_of(inputs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the cards say, from Dash's list of their inputs: letter (``*``: shared) -> settings given."""
    known = settings()
    found: dict[str, dict[str, Any]] = {}
    for item in inputs:
        letter, name = item["id"]["variant"], item["id"]["name"]
        given = found.setdefault(letter, {})
        value = known[name].value(item.get("value")) if name in known else None
        if value is not None:
            given[name] = value
    return found


def differences(form: Form, at: int) -> Any:
    """How a variant differs from A, one chip a setting."""
    if at == 0:
        return (
            [html.Span("The others are compared with this one.", className="muted")] if len(form.variants) > 1 else []
        )
    first, other = form.variants[0], form.variants[at]
    chips = [
        html.Span([f"{name} ", html.B(here), f" (A: {there})"], className="chip")
        for name, here, there in difference({**form.shared, **other.settings}, {**form.shared, **first.settings})
    ]
    if other.concurrency != first.concurrency:
        chips.append(html.Span(f"clients {other.concurrency or 'as common'}", className="chip"))
    if other.workload != first.workload:
        chips.append(html.Span("other workload", className="chip"))
    return chips or [html.Span("The same as A.", className="muted")]


def _card(page: str, letter: str, variant: Variant, count: int, alone: bool) -> Any:
    known = settings()
    main = [_field(page, letter, known[name], variant.settings) for name in MAIN]
    more = [setting for name, setting in known.items() if name not in MAIN and not (alone and name in SHARED)]
    given = sum(setting.name in variant.settings for setting in more)
    own = {"workload": variant.workload, "concurrency": variant.concurrency}
    return html.Section(
        [
            html.H3("Settings") if alone else _head(page, letter, variant, count),
            html.Div(id=_id(page, "told", letter), className="chips", **aria(live="polite")),
            html.Div(main, className="fields"),
            html.Details(
                [
                    html.Summary(f"More settings ({given} given)" if given else "More settings"),
                    html.Div(_clients(page, letter, variant) if not alone else [], className="fields"),
                    html.Div([_described(page, letter, each, variant.settings) for each in more], className="more"),
                ]
            ),
            html.P(_own_workload(variant), className="words"),
            dcc.Store(id=_id(page, "own", letter), data=own),
        ],
        className="card variant",
        id=f"{page}-card-{letter}",
    )  # fmt: skip


def _head(page: str, letter: str, variant: Variant, count: int) -> Any:
    label = dmc.TextInput(
        id=_id(page, "label", letter), value=variant.label if variant.label != letter else "", placeholder="label",
        size="xs", debounce=400, className="label", **aria(label=f"Label of {letter}"),
    )  # fmt: skip
    copy = dmc.Button(
        "Copy", id=_id(page, "copy", letter), size="compact-xs", variant="subtle", disabled=count >= MOST_RUNS,
        **aria(label=f"Add a copy of {letter}"),
    )  # fmt: skip
    remove = dmc.Button(
        "Remove", id=_id(page, "remove", letter), size="compact-xs", variant="subtle", color="gray",
        disabled=count == 1, **aria(label=f"Remove {letter}"),
    )  # fmt: skip
    return html.Div(
        [html.Span(letter, className=f"letter letter-{letter}"), label, copy, remove], className="variant-head"
    )


def _id(page: str, what: str, letter: str) -> dict[str, str]:
    return {"type": f"{page}-{what}", "variant": letter}


def _clients(page: str, letter: str, variant: Variant) -> list[Any]:
    return [
        dmc.NumberInput(
            id=_id(page, "clients", letter), value=variant.concurrency or "", label="Clients of this variant",
            placeholder="as common", min=1, allowDecimal=False, size="xs", debounce=400, hideControls=True,
        )
    ]  # fmt: skip


def _own_workload(variant: Variant) -> str:
    if variant.workload is None:
        return ""
    return f"It runs a workload of its own: {json.dumps(variant.workload)[1:-1]}".replace('"', "")


def _described(page: str, letter: str, setting: Setting, given: Mapping[str, Any]) -> Any:
    return html.Div([_field(page, letter, setting, given), html.P(setting.help, className="help")])


def _field(page: str, letter: str, setting: Setting, given: Mapping[str, Any], *, required: bool = False) -> Any:
    """One setting's control; what is not given shows what holds then."""
    value = given.get(setting.name)
    shown = "" if value is None else setting.text(value)
    default = setting.text(setting.default)
    common: dict[str, Any] = {
        "id": {"type": f"{page}-set", "variant": letter, "name": setting.name},
        "label": html.Span(setting.name, title=setting.help),
        "size": "xs",
        "placeholder": _placeholder(setting),
    }
    if setting.kind is bool:
        return dmc.Select(data=["on", "off"], value=shown or None, clearable=True, **common)
    if setting.free:
        return dmc.Autocomplete(
            data=list(setting.choices), value=shown or (default if required else ""), debounce=400, **common
        )
    if setting.choices:
        choices = [*setting.choices, *([shown] if shown and shown not in setting.choices else [])]
        chosen = shown or (default if required else None)
        searchable = {"searchable": True} if len(choices) > 8 else {}
        return dmc.Select(data=choices, value=chosen, clearable=not required, **searchable, **common)
    if setting.kind in (int, float):
        whole = {"allowDecimal": False} if setting.kind is int else {}
        separator = "," if setting.kind is int else ""
        return dmc.NumberInput(
            value=value if isinstance(value, int | float) else shown, debounce=400, hideControls=True,
            thousandSeparator=separator,
            **whole, **common,
        )  # fmt: skip
    return dmc.TextInput(value=shown, debounce=400, **common)


def _placeholder(setting: Setting) -> str:
    """What holds where nothing is given."""
    if setting.name in SHARED:
        return "as above"
    return str(setting.default) if setting.name in DERIVED else f"{setting.text(setting.default)} (default)"
