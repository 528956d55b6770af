"""Command-line options made from the settings they set, so that both have the same names, types and explanations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError

from .redraw import MOST_REQUESTS
from .setup import SYSTEM_SETTINGS, Setup

Command = TypeVar("Command", bound=Callable[..., Any])
DERIVED = {"max_model_len": "the model's", "num_blocks": "estimated from memory"}
"""Settings whose default a simulation works out."""
SWITCHES = ("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling")


def setting_options(*, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Add an option for every system and scheduler setting; the command gets them in ``settings`` (see `given`)."""

    def decorate(command: Command) -> Command:
        options = [*_options(Setup, SYSTEM_SETTINGS), *_options(SchedulerConfig, None)]
        for name, option in reversed(options):
            if name not in without:
                command = option(command)
        return command

    return decorate


def workload_options(command: Command) -> Command:
    """Add the workload argument and the options on how it is read and sent."""
    return traffic_options(_RATE(_CONCURRENCY(_THINK(command))))


def traffic_options(command: Command) -> Command:
    """Add the workload argument and the options on how it is read: for commands that set the pace themselves."""
    for option in reversed(_READING):
        command = option(command)
    return command


_READING = (
    click.argument("workload", default="default"),
    click.option("--requests", type=click.IntRange(min=1, max=MOST_REQUESTS), help="Only so many requests."),
    click.option("--sort", is_flag=True, help="Accept a file whose times are not in order."),
    click.option("--skip-bad", is_flag=True, help="Leave out and count rows that are wrong or could never be served."),
    click.option("--hash-block", type=click.IntRange(min=1), help="Tokens a hash id stands for."),
)
_RATE = click.option("--rate", type=float, help="Stretch arrivals to so many requests a second.")
_CONCURRENCY = click.option("--concurrency", type=int, help="So many closed-loop clients instead of arrival times.")
_THINK = click.option(
    "--think-s", type=float, default=0.0, help="Seconds such a client waits before it sends again (with --concurrency)."
)


def given(parameters: dict[str, Any]) -> dict[str, Any]:
    """The settings among a command's parameters that the user gave."""
    return {name: value for name, value in parameters.items() if value is not None}


def names_list(text: str) -> list[str]:
    """``a,b`` as ``["a", "b"]``."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _options(kind: type, names: tuple[str, ...] | None) -> list[tuple[str, Callable[[Command], Command]]]:
    texts = attribute_texts(kind)
    made = []
    for field in fields(kind):
        if names is None or field.name in names:
            flag = "--" + field.name.replace("_", "-")
            made.append((field.name, _option(field.name, flag, field.default, texts.get(field.name, ""))))
    return made


def _option(name: str, flag: str, default: Any, text: str) -> Callable[[Command], Command]:
    if name in SWITCHES:
        shown = f"{text}  [default: {'on' if default else 'off'}]".strip()
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=shown)
    if isinstance(default, tuple):
        return click.option(flag, name, callback=_whole_numbers, metavar="N,N,...", help=text)
    shown = f"{text}  [default: {DERIVED.get(name, default)}]"
    return click.option(flag, name, type=type(default), default=None, help=shown)


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
