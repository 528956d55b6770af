"""The words of a generated workload: kinds and fields of arrivals, lengths, prefixes and sessions, as the form asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dashboard.runs.workload_spec import generate_defaults
from traces.arrivals import ARRIVALS
from traces.generate import Prefixes, Sessions
from traces.lengths import LENGTHS
from traces.specs import parse_spec

NONE = "none"
_NO_FILES = {name: kind for name, kind in LENGTHS.items() if name != "empirical"}
KINDS: Mapping[str, Mapping[str, type[Any]]] = {
    "arrivals": ARRIVALS,
    "prompt": _NO_FILES,
    "output": _NO_FILES,
    "prefixes": {"prefixes": Prefixes},
    "sessions": {"sessions": Sessions},
}
"""Part of a generated workload -> its kinds. Prefixes and sessions have one kind, which stays out of the text."""
OPTIONAL = ("prefixes", "sessions")
_START: Mapping[str, float] = {
    "rate": 8, "cv": 2, "on": 1, "off": 3, "start": 1, "end": 16, "seconds": 60, "value": 256, "low": 64, "high": 1024,
    "mean": 300, "sigma": 1, "a": 1.2, "max": 4096, "groups": 4, "length": 240, "turns": 3, "max_context": 32768,
}  # fmt: skip
"""What a field shows before anybody typed into it."""


def field_names(part: str, kind: str) -> list[str]:
    """The fields of a kind, those that must be given first."""
    return [field.name for field in dataclasses.fields(KINDS[part][kind])] if kind in KINDS[part] else []


def start_values(part: str, kind: str) -> dict[str, float]:
    """Values to begin with: of fields without a default, and of those whose default the page does not take."""
    if kind not in KINDS[part]:
        return {}
    needed = [field.name for field in dataclasses.fields(KINDS[part][kind]) if field.default is dataclasses.MISSING]
    if part == "sessions":
        needed.append("max_context")
    return {name: _START[name] for name in needed}


def default_values(part: str, kind: str) -> dict[str, Any]:
    """Values that hold where nothing is given."""
    known = dataclasses.fields(KINDS[part][kind]) if kind in KINDS[part] else ()
    return {field.name: field.default for field in known if field.default is not dataclasses.MISSING}


def part_text(part: str, kind: str, values: Mapping[str, Any]) -> str:
    """The text of a part as on the command line, fields in their order, defaults left out; empty for none."""
    if kind not in KINDS[part]:
        return ""
    defaults = default_values(part, kind)
    given = [
        f"{name}={_number(values[name])}"
        for name in field_names(part, kind)
        if values.get(name) not in (None, "") and values[name] != defaults.get(name)
    ]
    head = "" if part in OPTIONAL else kind
    return ":".join(filter(None, [head, ",".join(given)]))


def part_of(part: str, text: str) -> tuple[str, dict[str, Any]]:
    """Kind and values of a text, with those that hold by default; ``("none", {})`` of an empty one.

    Raises ConfigError, with the sentence of the command line.
    """
    if not text and part in OPTIONAL:
        return NONE, {}
    whole = f"{part}:{text}" if part in OPTIONAL else text
    kind = whole.partition(":")[0].strip()
    made = parse_spec("option" if part in OPTIONAL else part, whole, KINDS[part])
    return kind, {name: getattr(made, name) for name in field_names(part, kind)}


def canonical(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same workload with each generated part in its one spelling, and nothing given that holds anyway.

    Raises ConfigError for a part that cannot be read.
    """
    given = {name: value for name, value in spec.items() if value is not None and value != ""}
    if given.get("kind") == "mix":
        return {**given, "parts": [canonical(part) for part in given.get("parts", ())]}
    if given.get("kind") != "generate":
        return given
    made: dict[str, Any] = {"kind": "generate", **generate_defaults(), **given}
    for part in KINDS:
        if part in made:
            made[part] = part_text(part, *part_of(part, str(made[part])))
    return {name: value for name, value in made.items() if value != "" and (name, value) != ("max_tokens", 0)}


def _number(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, int | float) else str(value)
