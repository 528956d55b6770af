"""Spec strings of the command line: ``kind:name=value,...`` becomes a dataclass that validates itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from scheduler.errors import ConfigError, unknown_name

T = TypeVar("T")


def parse_spec(what: str, spec: str, kinds: Mapping[str, type[T]]) -> T:
    """The object that `spec` describes, e.g. ``lognormal:mean=500,sigma=1``.

    A single value without a name is the kind's first field: ``constant:512``.

    Args:
        what: the option, for the sentence.
        spec: the text.
        kinds: name -> dataclass.

    Raises:
        ConfigError: unknown kind or field, a missing field, a value of the wrong type or out of range.
    """
    kind, _, text = spec.partition(":")
    if kind.strip() not in kinds:
        raise unknown_name(f"kind of {what}", kind.strip(), kinds)
    return build(f"{what} {kind.strip()}", kinds[kind.strip()], _split(what, text))


def build(what: str, kind: type[T], texts: Mapping[str, str]) -> T:
    """An instance of the dataclass `kind` with fields given as text; raises ConfigError."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type] # kinds are dataclasses
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if name == "":
            name = next(iter(fields), "")
        if name not in fields:
            raise unknown_name(f"setting of {what}", name, fields)
        values[name] = _value(what, name, text, str(fields[name].type))
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in values]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}; write {what.split()[-1]}:{missing[0]}=...")
    return kind(**values)


def check_range(what: str, value: float, *, least: float | None = None, above: float | None = None) -> None:
    """Raise ConfigError unless `value` is finite, ``>= least`` and ``> above``."""
    low = least is None or value >= least
    high = above is None or value > above
    if not (low and high and value < float("inf")):
        bound = f">= {least:g}" if least is not None else f"> {above:g}"
        raise ConfigError(f"{what} is {value}; expected a number {bound}")


def _split(what: str, text: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, equals, value = item.partition("=")
        if not equals:
            name, value = "", item
        if name.strip() in texts:
            raise ConfigError(f"{what} gives {name.strip() or 'a value without a name'} twice in {text!r}")
        texts[name.strip()] = value.strip()
    return texts


def _value(what: str, name: str, text: str, kind: str) -> object:
    if kind.startswith("str"):
        return text
    try:
        return int(text) if kind.startswith("int") else float(text)
    except ValueError as error:
        expected = "a whole number" if kind.startswith("int") else "a number"
        raise ConfigError(f"{what} has {name}={text}; expected {expected}") from error
