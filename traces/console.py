"""Terminal manners shared by all commands: common options, printing, progress, files written whole or not at all."""

from __future__ import annotations

import csv
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from scheduler.errors import ConfigError, UserError

from .atomic import FULL
from .atomic import atomic_path as atomic_path  # for those who show things too
from .config_file import load_config
from .outputs import guarded, refuse_inputs

if TYPE_CHECKING:
    from rich.console import Console

Command = TypeVar("Command", bound=Callable[..., Any])
Render = Callable[["Console"], None]

PIPED_WIDTH = 10_000
"""Columns when standard output is no terminal: no line is ever broken."""


def common_options(command: Command) -> Command:
    """Add ``--json`` (`as_json`), ``--out`` (`out`), ``--seed`` (`seed`) and ``--config`` to a click command.

    Such a command never writes over what it reads (see `outputs.guarded`).
    """
    return options_but_out(
        click.option("--out", type=click.Path(), help="Also write the result to this file.")(command)
    )


def options_but_out(command: Command) -> Command:
    """`common_options` for a command whose ``--out`` means something of its own."""
    command = guarded(command)
    for option in (
        click.option(
            "--config",
            type=click.Path(dir_okay=False),
            is_eager=True,
            expose_value=False,
            callback=load_config,
            help="YAML file with values for these options; flags win over it.",
        ),
        click.option(
            "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all randomness."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables."),
    ):
        command = option(command)
    return command


def emit(result: object, *, as_json: bool, out: str | Path | None, render: Render) -> None:
    """Show a result: one JSON document or `render`'s tables on stdout, and the same data in the file `out`.

    Args:
        result: what JSON can hold (no NaN); a list of flat dicts can also go to a ``.csv`` file.
        as_json: print JSON, nothing else.
        out: file to write besides; CSV when its name ends in ``.csv``, else JSON. Written atomically.
        render: prints the human form on the rich console it is given.

    Raises:
        ConfigError: `out` is a ``.csv`` and the result is no table, or `out` is what the command reads.
        UserError: the disk is full or the file cannot be written.
    """
    if out is not None:
        refuse_inputs(out)
        _write_result(result, Path(out))
    with _stdout_guard():
        if as_json:
            sys.stdout.write(_dumps(result) + "\n")
        else:
            render(stdout_console())
        sys.stdout.flush()


def stdout_console() -> Console:
    """A rich console on stdout: colours and the terminal's width on a terminal, plain and wide when piped."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


class Progress(Protocol):
    """What `progress` hands out."""

    def advance(self, amount: float = 1) -> None:
        """Count `amount` more units as done."""


@contextmanager
def progress(label: str, total: float | None) -> Iterator[Progress]:
    """A progress bar on stderr while the block runs; silent when stderr is no terminal. `total` None: a spinner."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    with RichProgress(console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, bar.add_task(label, total=total))


def _dumps(result: object) -> str:
    return json.dumps(result, indent=2, allow_nan=False, ensure_ascii=False)


def _write_result(result: object, path: Path) -> None:
    rows = _flat_rows(result) if path.suffix.lower() == ".csv" else None
    if path.suffix.lower() == ".csv" and rows is None:
        raise ConfigError(f"{path}: this result is not a flat table; give a name that ends in .json")
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        if rows is None:
            file.write(_dumps(result) + "\n")
        else:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _flat_rows(result: object) -> Sequence[Mapping[str, Any]] | None:
    """`result` if it is a list of dicts of plain values, else None."""
    if not isinstance(result, list) or not all(isinstance(row, dict) for row in result):
        return None
    if any(isinstance(value, (dict, list, tuple)) for row in result for value in row.values()):
        return None
    return result


@contextmanager
def _stdout_guard() -> Iterator[None]:
    """A full disk behind stdout is a user's error; a reader that went away (``| head``) ends us quietly."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL | {errno.EPIPE}:
            raise
        # what is still buffered must not fail again when Python flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            sys.exit(0)
        raise UserError("no space left on device while writing standard output") from error


class _Silent:
    def advance(self, amount: float = 1) -> None:
        """Nothing to show."""


class _Bar:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task

    def advance(self, amount: float = 1) -> None:
        """Move the bar."""
        self._bar.advance(self._task, amount)
