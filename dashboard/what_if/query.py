"""The What-if form as a value, and its address: `parse` and `write` undo each other.

An address holds the workload's fields (``workload=generate&arrivals=poisson:rate=8``), settings that all variants share
under their own names (``max_num_seqs=32``), and those of one variant under its letter (``B.policy=static``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from dashboard.look import MOST_RUNS, RUN_NAMES
from dashboard.scenario import Scenario, Variant, scenario_named
from scheduler.errors import ConfigError

from .settings import SHARED, settings
from .words import canonical

PATH = "/what-if"
PLAIN: Mapping[str, Any] = {"kind": "preset", "name": "default"}
"""The workload where none is named."""
_TEXTS = ("arrivals", "prompt", "output", "prefixes", "sessions")
_NUMBERS = ("requests", "rate", "max_tokens")
_LISTS = ("arrival_s", "prompt_tokens", "output_tokens", "parts")
_LOAD = ("seed", "concurrency", "think_s")
FIELDS = ("scenario", "workload", "variants", *_TEXTS, *_NUMBERS, *_LISTS, *_LOAD)
"""Fields of an address besides settings and variants."""


@dataclass(frozen=True)
class Form:
    """Everything that the form says.

    Attributes:
        workload: as for `dashboard.runs.workload_spec.workload_of`, in its canonical spelling.
        shared: model, hardware and cost model, those that are given.
        variants: one to four; a label that is a variant's letter is as good as none.
        seed: of all randomness.
        concurrency: closed-loop clients instead of arrival times.
        think_s: seconds such a client waits.
        scenario: key of the scenario that it began with; empty: none.
    """

    workload: Mapping[str, Any] = field(default_factory=lambda: dict(PLAIN))
    shared: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[Variant, ...] = (Variant("A"),)
    seed: int = 0
    concurrency: int | None = None
    think_s: float = 0.0
    scenario: str = ""

    def requests(self) -> list[dict[str, Any]]:
        """One request a variant, as `dashboard.runs.request.RunRequest.of` takes it."""
        return [self._request(variant) for variant in self.variants]

    def _request(self, variant: Variant) -> dict[str, Any]:
        concurrency = self.concurrency if variant.concurrency is None else variant.concurrency
        return {
            "label": variant.label,
            "workload": dict(self.workload if variant.workload is None else variant.workload),
            "settings": {**self.shared, **variant.settings},
            "seed": self.seed,
            **({} if concurrency is None else {"concurrency": concurrency}),
            **({"think_s": self.think_s} if self.think_s else {}),
        }

    def with_variant(self, variant: Variant) -> Form:
        """The form with one more variant; the same where there is no room."""
        return self if len(self.variants) >= MOST_RUNS else replace(self, variants=(*self.variants, variant))


FIRST = Form(variants=(Variant("naive", {"policy": "static"}), Variant("continuous", {"policy": "chunked"})))
"""What a first visit shows."""


def of_scenario(scenario: Scenario) -> Form:
    """The form that a scenario fills in."""
    common = {name: value for name, value in scenario.settings.items() if name not in SHARED}
    shared = {name: value for name, value in scenario.settings.items() if name in SHARED}
    variants = [
        Variant(
            each.label,
            typed_settings({**common, **each.settings}),
            None if each.workload is None else canonical(each.workload),
            each.concurrency,
        )
        for each in scenario.variants
    ]
    return Form(
        canonical(scenario.workload),
        {"model": scenario.model, "hardware": scenario.hardware, "cost": scenario.cost, **shared},
        tuple(variants),
        concurrency=scenario.concurrency,
        scenario=scenario.key,
    )


def of_requests(requests: Iterable[Mapping[str, Any]]) -> Form:
    """The form that asks for some stored runs; what the first one has is common to all."""
    asked = list(requests)[:MOST_RUNS]
    first = asked[0]
    shared = {name: value for name, value in first["settings"].items() if name in SHARED}
    variants = [
        Variant(
            request.get("label") or RUN_NAMES[at],
            typed_settings({n: v for n, v in request["settings"].items() if n not in shared or shared[n] != v}),
            None if request["workload"] == first["workload"] else dict(request["workload"]),
            None if request.get("concurrency") == first.get("concurrency") else request.get("concurrency"),
        )
        for at, request in enumerate(asked)
    ]
    return Form(
        dict(first["workload"]), shared, tuple(variants), first.get("seed", 0), first.get("concurrency"),
        first.get("think_s", 0.0),
    )  # fmt: skip


def write(form: Form) -> str:
    """The address of a form, from its question mark on."""
    return "?" + urlencode(fields_of(form), safe=":,=/")


def link(workload: Mapping[str, Any], settings_by_variant: Mapping[str, Mapping[str, Any]]) -> str:
    """The address of What-if with a workload and the settings of some variants, by their letters."""
    given = list(settings_by_variant.values())
    shared = {name: value for name, value in given[0].items() if name in SHARED and _in_all(name, value, given)}
    variants = [
        Variant(letter, {name: value for name, value in each.items() if name not in shared})
        for letter, each in zip(RUN_NAMES, given, strict=False)
    ]
    return PATH + write(Form(canonical(workload), shared, tuple(variants)))


def fields_of(form: Form) -> dict[str, str]:
    """The fields of a form's address."""
    if form.scenario and form == _scenario_form(form.scenario):
        return {"scenario": form.scenario}
    common = _common(form.variants)
    found = {"scenario": form.scenario, **_workload_fields(form.workload)}
    found |= {name: _text(name, value) for name, value in {**form.shared, **common}.items()}
    found |= {
        "seed": str(form.seed) if form.seed else "",
        "concurrency": "" if form.concurrency is None else str(form.concurrency),
        "think_s": repr(form.think_s) if form.think_s else "",
    }
    for letter, variant in zip(RUN_NAMES, form.variants, strict=False):
        found |= {f"{letter}.{name}": value for name, value in _variant_fields(variant, letter, common).items()}
    found = {name: value for name, value in found.items() if value != ""}
    if max(1, _last_letter(found)) < len(form.variants):
        found["variants"] = str(len(form.variants))
    return found


def parse(query: str | Mapping[str, Any]) -> Form:
    """The form of an address. What makes no sense there is left out: links get cut and mistyped."""
    found = dict(parse_qsl(query.lstrip("?"))) if isinstance(query, str) else {k: str(v) for k, v in query.items()}
    form = _scenario_form(found.get("scenario", ""))
    if "workload" not in found and form is not None:
        return form
    common, shared = _settings_in(found, SHARED, inside=False), _settings_in(found, SHARED, inside=True)
    count = max(1, _last_letter(found), min(_whole(found.get("variants")) or 0, MOST_RUNS))
    if not (common or shared or found.keys() & set(FIELDS) or _last_letter(found)):
        return FIRST
    variants = tuple(_variant(letter, _under(found, letter), common) for letter in RUN_NAMES[:count])
    return Form(
        _workload_in(found) or dict(PLAIN),
        shared,
        variants,
        _whole(found.get("seed")) or 0,
        _whole(found.get("concurrency")),
        _number(found.get("think_s")) or 0.0,
        "" if form is None else form.scenario,
    )


def _scenario_form(key: str) -> Form | None:
    try:
        return of_scenario(scenario_named(key)) if key else None
    except ConfigError:  # an old link; the form then stands without it
        return None


def _common(variants: Iterable[Variant]) -> dict[str, Any]:
    """Settings that all variants have with one value; model, hardware and cost stand for themselves."""
    given = [variant.settings for variant in variants]
    return {name: value for name, value in given[0].items() if name not in SHARED and _in_all(name, value, given)}


def _in_all(name: str, value: Any, given: Iterable[Mapping[str, Any]]) -> bool:
    return all(name in each and each[name] == value for each in given)


def _variant_fields(variant: Variant, letter: str, common: Mapping[str, Any]) -> dict[str, str]:
    own = {name: value for name, value in variant.settings.items() if name not in common}
    return {
        "label": "" if variant.label == letter else variant.label,
        **({} if variant.workload is None else _workload_fields(variant.workload)),
        **{name: _text(name, value) for name, value in own.items()},
        "concurrency": "" if variant.concurrency is None else str(variant.concurrency),
    }


def _variant(letter: str, found: Mapping[str, str], common: Mapping[str, Any]) -> Variant:
    return Variant(
        found.get("label", "").strip() or letter,
        {**common, **_settings_in(found, ())},
        _workload_in(found),
        _whole(found.get("concurrency")),
    )


def _settings_in(found: Mapping[str, str], names: Iterable[str], *, inside: bool = False) -> dict[str, Any]:
    """The settings among some fields: those of the names, or all but those."""
    known = settings()
    return {
        name: known[name].value(text)
        for name, text in found.items()
        if name in known and (name in names) == inside and known[name].value(text) is not None
    }


def _under(found: Mapping[str, str], letter: str) -> dict[str, str]:
    return {name[2:]: value for name, value in found.items() if name.startswith(f"{letter}.")}


def _last_letter(found: Mapping[str, str]) -> int:
    """How many variants the fields name, by their last letter."""
    return max((at + 1 for at, letter in enumerate(RUN_NAMES) if _under(found, letter)), default=0)


def _workload_fields(spec: Mapping[str, Any]) -> dict[str, str]:
    """A workload as fields; of a preset or an upload the first one names it."""
    kind = spec["kind"]
    named = {"preset": "name", "upload": "id"}.get(kind, "")
    head = f"upload:{spec[named]}" if kind == "upload" else str(spec.get(named, kind))
    rest = {name: value for name, value in spec.items() if name not in ("kind", named)}
    return {"workload": head, **{name: _field_text(value) for name, value in rest.items()}}


def _workload_in(found: Mapping[str, str]) -> dict[str, Any] | None:
    head = found.get("workload")
    if not head:
        return None
    if head.startswith("{"):
        return _json_workload(head)
    kind, _, upload = head.partition(":")
    spec: dict[str, Any] = {"kind": "preset", "name": head}
    if kind == "upload":
        spec = {"kind": kind, "id": upload}
    elif head in ("generate", "list", "mix"):
        spec = {"kind": head}
    for name in (*_TEXTS, *_NUMBERS, *_LISTS):
        if name in found:
            spec[name] = _field_value(name, found[name])
    return _canonical(spec)


def _canonical(spec: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return canonical(spec)
    except ConfigError:  # the form shows it as it is, and says what is wrong
        return dict(spec)


def _json_workload(text: str) -> dict[str, Any] | None:
    """A workload written as JSON, as other programs may do."""
    try:
        spec = json.loads(text)
    except ValueError:
        return None
    return _canonical(spec) if isinstance(spec, dict) and isinstance(spec.get("kind"), str) else None


def _field_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _field_value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(name: str, value: Any) -> str:
    return settings()[name].text(value)


def typed_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with lists as tuples, as the form holds them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None or not number.is_integer() else int(number)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number < 2**53 else None
