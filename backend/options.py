"""Command-line options of everything that starts an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from traces.setting_options import scheduler_options

Command = TypeVar("Command", bound=Callable[..., Any])

DERIVED = {
    "max_model_len": "the model's, at most 8192",
    "num_blocks": "what the memory for K/V holds",
    "eos_token_ids": "the model's",
}
"""Settings whose default an engine works out."""
_OPTIONS = (
    click.option("--model", default="embedded", show_default=True, help="embedded, a directory, or a Hugging Face id."),
    click.option("--device", help="cpu, cuda, or auto.  [default: auto]"),
    click.option("--dtype", help="float32, bfloat16, float16, float64, or auto.  [default: auto]"),
    click.option("--ops", help="torch, triton (a GPU's default), or auto.  [default: auto]"),
    click.option("--threads", type=click.IntRange(min=1), help="Of torch on the CPU.  [default: all cores]"),
    click.option("--kv-cache-gib", type=float, help="Memory for K/V.  [default: 1 on the CPU, else what is left]"),
    click.option("--gpu-memory-utilization", type=float, help="Share of a GPU's memory to use.  [default: 0.9]"),
)


def engine_options(command: Command) -> Command:
    """Add ``--model`` and all settings of an engine; the command gets them by name, None where not given.

    All but ``model`` may go to `Engine` as they are (see `traces.setting_options.given`).
    """
    return engine_options_but()(command)


def engine_options_but(*without: str) -> Callable[[Command], Command]:
    """`engine_options`, but for these settings of the scheduler."""

    def decorate(command: Command) -> Command:
        command = scheduler_options(DERIVED, without=without)(command)
        for option in reversed(_OPTIONS):
            command = option(command)
        return command

    return decorate
