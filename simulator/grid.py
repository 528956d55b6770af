"""Grids: settings and the values that each takes, read from text or YAML and checked before anything runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from typing import Any

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError, unknown_name
from scheduler.policies import find_policy

from .costs.base import cost_model_class, split_options
from .hardware import get_hardware
from .models import WIDTHS, get_model
from .redraw import MOST_REQUESTS
from .run import MOST_THINK_S
from .setup import SYSTEM_SETTINGS, Setup

LOAD_AXES: dict[str, type] = {"rate": float, "requests": int, "concurrency": int, "think_s": float, "seed": int}
"""What can be varied besides the settings: how the requests are sent."""
MOST_VALUES = 10_000
"""No axis has more values."""
_SETTINGS: dict[str, Any] = {
    field.name: field.default
    for kind in (Setup, SchedulerConfig)
    for field in fields(kind)
    if kind is SchedulerConfig or field.name in SYSTEM_SETTINGS
}
_MOST = {"requests": MOST_REQUESTS, "concurrency": MOST_REQUESTS, "think_s": MOST_THINK_S}
_NEED_OTHERS = ("max_model_len", "model_len_margin")  # whether these are valid depends on other settings
_WORDS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}

Grid = dict[str, list[Any]]


def parse_grid(specs: Iterable[str]) -> Grid:
    """From texts ``name=values``; values are separated by commas.

    For numbers a value may be a range ``first:last:step`` (the last included where a step hits it) or
    ``log:first:last:count``. A value that is itself a list is written with ``+`` (``1+2+4``), ``none`` is an empty one
    (or no concurrency). Raises ConfigError for anything else, and for values that could never be right.
    """
    grid: dict[str, Any] = {}
    for spec in specs:
        name, equals, values = spec.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values.strip():
            raise ConfigError(f"grid {spec!r}: expected NAME=VALUE,VALUE,... as in max_num_seqs=16,32")
        if name in grid:
            raise ConfigError(f"grid names {name} twice")
        grid[name] = values
    return check_grid(grid)


def check_grid(grid: Mapping[str, Any]) -> Grid:
    """A grid from a mapping: name -> list of values, one value, or a text as for `parse_grid`. Raises ConfigError."""
    if not grid:
        raise ConfigError("the grid is empty; name at least one setting, as in max_num_seqs=16,32")
    checked: Grid = {}
    for key, given in grid.items():
        name = key.replace("-", "_")
        if name not in _SETTINGS and name not in LOAD_AXES:
            raise unknown_name("setting in the grid", key, [*_SETTINGS, *LOAD_AXES])
        found = _values(name, given)
        for value in found:
            _check_alone(name, value)
        checked[name] = [value for place, value in enumerate(found) if value not in found[:place]]
    return checked


def points(grid: Grid) -> list[dict[str, Any]]:
    """All combinations, the last axis changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _values(name: str, given: Any) -> list[Any]:
    if isinstance(given, str):
        return [value for part in _split(name, given) for value in _expand(name, part)]
    items = given if isinstance(given, Sequence) else [given]
    if not items:
        raise ConfigError(f"grid {name} is empty; expected values")
    return [value for item in items for value in (_expand(name, item) if isinstance(item, str) else [_typed(item)])]


def _split(name: str, text: str) -> list[str]:
    """At commas; a part of a cost model that is only ``key=value`` belongs to the model before it."""
    parts: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if name == "cost" and parts and "=" in part and ":" not in part.partition("=")[0]:
            parts[-1] += f",{part}"
        elif part:
            parts.append(part)
    return parts


def _typed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _expand(name: str, text: str) -> list[Any]:
    kind = _kind(name)
    if kind is str:
        return [text]
    if kind in (int, float) and ":" in text:
        return _range(name, text, whole=kind is int)
    return [_parse(name, text, kind)]


def _kind(name: str) -> type:
    return LOAD_AXES[name] if name in LOAD_AXES else type(_SETTINGS[name])


def _parse(name: str, text: str, kind: type) -> Any:
    if text.lower() == "none" and (kind is tuple or name == "concurrency"):
        return () if kind is tuple else None
    try:
        if kind is bool:
            return _WORDS[text.lower()]
        if kind is tuple:
            return tuple(int(part) for part in text.split("+"))
        return kind(text)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"grid {name}: {text!r} is not {_EXPECTED[kind]}") from error


_EXPECTED = {bool: "true or false", tuple: "whole numbers N+N+... or none", int: "a whole number", float: "a number"}


def _range(name: str, text: str, *, whole: bool) -> list[Any]:
    parts = text.split(":")
    try:
        if parts[0] == "log":
            found = _log_range(*(Decimal(part) for part in parts[1:]))
        else:
            found = _step_range(*(Decimal(part) for part in parts))
    except (InvalidOperation, TypeError, ValueError) as error:
        raise ConfigError(
            f"grid {name}: {text!r} is no range; expected first:last:step with step > 0, or log:first:last:count with "
            "0 < first and count >= 2"
        ) from error
    if whole and parts[0] == "log":
        return [int(value.to_integral_value()) for value in found]
    if whole and any(value != value.to_integral_value() for value in found):
        raise ConfigError(f"grid {name}: {text!r} gives fractions; expected whole numbers")
    return [int(value) if whole else float(value) for value in found]


def _step_range(first: Decimal, last: Decimal, step: Decimal) -> list[Decimal]:
    """Exact decimals, as a user would write them."""
    if step <= 0 or last < first or (last - first) / step >= MOST_VALUES:
        raise ValueError
    return [first + number * step for number in range(int((last - first) / step) + 1)]


def _log_range(first: Decimal, last: Decimal, count: Decimal) -> list[Decimal]:
    """Evenly spaced on a logarithmic scale, rounded to 6 digits; both ends exactly."""
    steps = int(count) - 1
    if first <= 0 or last <= first or steps < 1 or count != int(count) or steps >= MOST_VALUES:
        raise ValueError
    between = [first * (last / first) ** (Decimal(number) / steps) for number in range(1, steps)]
    return [first, *(Decimal(f"{value:.6g}") for value in between), last]


def _check_alone(name: str, value: Any) -> None:
    """Raise ConfigError for a value that no combination could save: a name that nobody knows, a number out of range."""
    if name in LOAD_AXES:
        _check_load(name, value)
    elif name == "policy":
        find_policy(value)
    elif name == "model":
        get_model(value)
    elif name == "hardware":
        get_hardware(value)
    elif name == "cost":
        cost_model_class(split_options(value)[0])
    elif name in ("weight_dtype", "kv_dtype"):
        if value not in WIDTHS:
            raise unknown_name(name, str(value), WIDTHS)
    elif name == "tensor_parallel":
        _check_count(name, value)
    elif name not in SYSTEM_SETTINGS and name not in _NEED_OTHERS:
        SchedulerConfig(**{name: value})


def _check_load(name: str, value: Any) -> None:
    if name == "concurrency" and value is None:
        return
    kind = LOAD_AXES[name]
    least = 0 if name in ("think_s", "seed") else 1 if kind is int else None
    right = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not right or not value < float("inf") or (value <= 0 if least is None else value < least):
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"grid {name}: {value!r}; expected {what} {'> 0' if least is None else f'>= {least}'}")
    if value > _MOST.get(name, value):
        raise ConfigError(f"grid {name}: {value!r}; expected at most {_MOST[name]:,}")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"grid {name}: {value!r}; expected a whole number >= 1")
