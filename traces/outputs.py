"""What a command writes: never over what it reads, and what is kept of it after Ctrl-C."""

from __future__ import annotations

import functools
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from scheduler.errors import ConfigError

from .config_file import config_path, located

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS = ("out", "trace", "traces")
"""Options that name what a command writes, in every room."""
_ARGUMENTS = ("target",)
"""Arguments that do."""
_CLOCK_S = 0.05
"""File times may lag the clock by a tick of the kernel."""


def guarded(command: Command) -> Command:
    """Wrap a click command: outputs that would replace an input are refused before it starts, mistakes in its
    configuration file get their line, and after Ctrl-C the exception's notes say what was kept.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        ctx = click.get_current_context()
        start_s = time.time() - _CLOCK_S
        _refuse_all(ctx)
        try:
            return command(*args, **kwargs)
        except ConfigError as error:
            found = located(ctx, error)
            if found is error:
                raise
            raise found from error
        except KeyboardInterrupt as stop:
            for note in _kept(ctx, start_s):
                stop.add_note(note)
            raise

    return cast("Command", run)


def refuse_overwrite(out: str | Path, *inputs: str | Path, label: str = "--out") -> None:
    """Raise ConfigError when writing `out` would replace one of `inputs`: the same file, or one inside that folder.

    Of folders only step traces and ServeGen folders count; a name that is no existing path is no input.
    """
    for source in map(Path, inputs):
        if _is_same(Path(out), source):
            raise ConfigError(f"{label} {out} would replace {source}, which this command reads; expected another name")
        if _holds_data(source) and _is_inside(Path(out), source):
            raise ConfigError(f"{label} {out} lies inside {source}, which this command reads; expected another place")


def refuse_inputs(out: str | Path) -> None:
    """`refuse_overwrite` against all that the running command reads; nothing outside of a command."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None:
        refuse_overwrite(out, *_inputs(ctx))


def _refuse_all(ctx: click.Context) -> None:
    outputs = list(_outputs(ctx))
    for number, (label, out) in enumerate(outputs):
        refuse_overwrite(out, *_inputs(ctx), label=label)
        for other, path in outputs[:number]:
            if os.path.realpath(out) == os.path.realpath(path) and not _is_device(out):
                raise ConfigError(f"{label} and {other} are both {out}; expected another name for one of them")


def _outputs(ctx: click.Context) -> Iterator[tuple[str, str]]:
    """What a command writes: the parameter as the user knows it, and its path."""
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if _is_output(param) and isinstance(value, str):
            yield (param.opts[-1] if isinstance(param, click.Option) else (param.name or "").upper()), value


def _is_output(param: click.Parameter) -> bool:
    return param.name in (_OPTIONS if isinstance(param, click.Option) else _ARGUMENTS)


def _inputs(ctx: click.Context) -> Iterator[str]:
    """Paths of existing files and folders among all other parameters; also within ``kind:file=PATH``."""
    config = config_path(ctx)
    if config is not None:
        yield config
    for param in ctx.command.params:
        value = None if _is_output(param) else ctx.params.get(param.name or "")
        for text in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(text, str):
                yield from (part for part in dict.fromkeys((text, *re.split("[=:,]", text))) if _exists(part))


def _exists(path: str) -> bool:
    return bool(path) and "\0" not in path and os.path.exists(path)


def _is_same(out: Path, source: Path) -> bool:
    return out.exists() and source.exists() and not _is_device(out) and os.path.samefile(out, source)


def _is_device(path: str | Path) -> bool:
    """Whether this is a terminal, a pipe or the like, which holds nothing that could be lost."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _is_inside(out: Path, folder: Path) -> bool:
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(out)).parents


def _holds_data(folder: Path) -> bool:
    return folder.is_dir() and ((folder / "meta.json").exists() or any(folder.glob("chunk-*-trace.csv")))


def _kept(ctx: click.Context, start_s: float) -> Iterator[str]:
    """What of a command's outputs has been written since it started."""
    for _, out in _outputs(ctx):
        path = Path(out)
        traces = [path, *sorted(path.glob("*.trace"))] if path.is_dir() else []
        written = [folder for folder in traces if _changed(folder / "meta.json", start_s)]
        yield from map(_trace_note, written)
        files = [path] if path.is_file() else list(path.iterdir()) if path.is_dir() and not written else []
        if any(file.is_file() and _changed(file, start_s) for file in files):
            yield f"results so far kept in {path}"


def _trace_note(folder: Path) -> str:
    complete = json.loads((folder / "meta.json").read_text(encoding="utf-8")).get("complete")
    return f"{'trace' if complete else 'partial trace'} kept in {folder}"


def _changed(path: Path, start_s: float) -> bool:
    return path.exists() and path.stat().st_mtime >= start_s
