"""Command-line options made from the settings they set, so that both have the same names, types and explanations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])
SWITCHES = ("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling")


def scheduler_options(derived: Mapping[str, str], *, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Add an option for every scheduler setting; the command gets them as parameters (see `given`).

    Args:
        derived: settings whose default is worked out elsewhere, and how to call it.
        without: settings that get none.
    """
    return add_options(options_of(SchedulerConfig, derived=derived), without=without)


def add_options(
    options: list[tuple[str, Callable[[Command], Command]]], *, without: tuple[str, ...] = ()
) -> Callable[[Command], Command]:
    """A decorator that adds these options in their order."""

    def decorate(command: Command) -> Command:
        for name, option in reversed(options):
            if name not in without:
                command = option(command)
        return command

    return decorate


def given(parameters: dict[str, Any]) -> dict[str, Any]:
    """The settings among a command's parameters that the user gave."""
    return {name: value for name, value in parameters.items() if value is not None}


def options_of(
    kind: type, names: tuple[str, ...] | None = None, *, derived: Mapping[str, str] | None = None
) -> list[tuple[str, Callable[[Command], Command]]]:
    """Name and option of the fields of a dataclass; `names`: only these."""
    texts = attribute_texts(kind)
    return [
        (field.name, _option(field.name, (derived or {}).get(field.name, field.default), field.default, texts))
        for field in fields(kind)
        if names is None or field.name in names
    ]


def _option(name: str, shown_default: Any, default: Any, texts: Mapping[str, str]) -> Callable[[Command], Command]:
    flag, text = "--" + name.replace("_", "-"), texts.get(name, "")
    if name in SWITCHES:
        shown = f"{text}  [default: {'on' if default else 'off'}]".strip()
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=shown)
    if isinstance(default, tuple):
        return click.option(flag, name, callback=_whole_numbers, metavar="N,N,...", help=text)
    return click.option(flag, name, type=type(default), default=None, help=f"{text}  [default: {shown_default}]")


def _whole_numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return () if value.strip().lower() == "none" else tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        flag = "--" + (param.name or "").replace("_", "-")
        raise ConfigError(f"{flag} is {value!r}; expected whole numbers N,N,... or none") from error


def attribute_texts(kind: type) -> dict[str, str]:
    """What a class's docstring says of each attribute, first sentence, markup taken off."""
    text = inspect.getdoc(kind) or ""
    _, _, attributes = text.partition("Attributes:\n")
    found: dict[str, str] = {}
    for match in re.finditer(r"^    (\w[\w, ]*): (.*(?:\n        .*)*)", attributes, re.MULTILINE):
        sentence = re.sub(r"\s+", " ", match[2]).replace("`", "").strip().rstrip(".")
        for name in match[1].split(","):
            found[name.strip()] = sentence[:1].upper() + sentence[1:] + "."
    return found
