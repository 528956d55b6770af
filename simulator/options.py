"""Command-line options made from the settings they set, so that both have the same names, types and explanations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from scheduler.config import SchedulerConfig
from traces.setting_options import add_options, given, options_of

from .redraw import MOST_REQUESTS
from .setup import SYSTEM_SETTINGS, Setup

Command = TypeVar("Command", bound=Callable[..., Any])
DERIVED = {"max_model_len": "the model's", "num_blocks": "estimated from memory"}
"""Settings whose default a simulation works out."""
__all__ = ["given", "names_list", "setting_options", "traffic_options", "workload_options"]


def setting_options(*, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Add an option for every system and scheduler setting; the command gets them in ``settings`` (see `given`)."""
    system: list[tuple[str, Callable[[Command], Command]]] = options_of(Setup, SYSTEM_SETTINGS)
    return add_options([*system, *options_of(SchedulerConfig, derived=DERIVED)], without=without)


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


def names_list(text: str) -> list[str]:
    """``a,b`` as ``["a", "b"]``."""
    return [name.strip() for name in text.split(",") if name.strip()]
