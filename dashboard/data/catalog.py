"""The runs that can be opened, by key: samples, traces given on the command line, a person's own runs, live ones.

Addresses hold keys only. No path from outside is ever joined to a folder: a key is looked up, or it is unknown.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler.errors import InputError, UserError
from traces.sound import open_checked
from traces.trace import Trace

from .run import Run, TraceRun

MOST_HELD_BYTES = 1 << 30
"""Memory for columns of open runs; those looked at longest ago go first."""


@dataclass(frozen=True)
class Entry:
    """A run on offer.

    Attributes:
        key: its name in addresses.
        name: what people call it.
        group: the heading it is listed under.
        source: ``simulated`` or ``measured``.
    """

    key: str
    name: str
    group: str
    source: str


Resolver = Callable[[str], tuple[Path, str] | None]
"""Key -> the trace's folder and name; None when it is not one of its keys. Raises UserError when it is, but is gone."""


class Catalog:
    """Open runs by key.

    Args:
        folders: key -> a trace's folder, its name and heading, known from the start.
        resolvers: ask these for other keys, in order.
    """

    def __init__(self, folders: Mapping[str, tuple[Path, Entry]], resolvers: Iterable[Resolver] = ()) -> None:
        self._folders = dict(folders)
        self._resolvers = list(resolvers)
        self._open: OrderedDict[str, TraceRun] = OrderedDict()
        self._live: dict[str, Callable[[], Run]] = {}
        self._checked: set[str] = set()
        self._lock = threading.RLock()

    def entries(self) -> list[Entry]:
        """The runs that everybody sees, in order."""
        return [entry for _, entry in self._folders.values()]

    def add_live(self, key: str, snapshot: Callable[[], Run]) -> None:
        """Let a key stand for what a live source holds at the moment it is asked."""
        with self._lock:
            self._live[key] = snapshot

    def run(self, key: str) -> Run:
        """The run of a key. Raises UserError when there is none, or it cannot be read."""
        with self._lock:
            live = self._live.get(key)
            if live is not None:
                return live()
            run = self._open.get(key)
            if run is None or _has_moved_on(run):
                run = self._opened(key)
            self._open[key] = run
            self._open.move_to_end(key)
            self._forget()
            return run

    def runs(self, keys: Iterable[str]) -> tuple[Run, ...]:
        """The runs of several keys."""
        return tuple(self.run(key) for key in keys)

    def _opened(self, key: str) -> TraceRun:
        folder, name = self._found(key)
        trace = Trace.open(folder) if key in self._checked else open_checked(folder)
        self._checked.add(key)
        return TraceRun(key, name, trace)

    def _found(self, key: str) -> tuple[Path, str]:
        if key in self._folders:
            folder, entry = self._folders[key]
            return folder, entry.name
        for resolver in self._resolvers:
            found = resolver(key)
            if found is not None:
                return found
        raise UserError(f"there is no run {key[:40]!r} here; it may have been removed")

    def _forget(self) -> None:
        while len(self._open) > 1 and sum(run.held_bytes() for run in self._open.values()) > MOST_HELD_BYTES:
            self._open.popitem(last=False)


def _has_moved_on(run: TraceRun) -> bool:
    """Whether a trace that was still written when it was opened may hold more by now."""
    return run.status == "running"


def given_traces(
    paths: Iterable[Path], warn: Callable[[str], None] = lambda sentence: None
) -> dict[str, tuple[Path, Entry]]:
    """Keys of traces given as folders ``NAME.trace``, or as folders that hold some.

    Args:
        paths: the folders.
        warn: told of each broken trace in a folder that holds some; it is left out.

    Raises:
        InputError: a path is no trace and holds none, or is a broken one.
    """
    found: dict[str, tuple[Path, Entry]] = {}
    for path in paths:
        traces = [path] if (path / "meta.json").is_file() else sorted(path.glob("*.trace"))
        if not traces:
            raise InputError("is no step trace and holds none (NAME.trace)", path=path)
        for trace in traces:
            try:
                opened = open_checked(trace)
            except UserError as error:
                if trace == path:
                    raise
                warn(str(error))
                continue
            key = _key("given", trace.name.removesuffix(".trace"), found)
            found[key] = trace, Entry(key, trace.name.removesuffix(".trace"), "Given traces", opened.meta["source"])
    return found


def sample_traces() -> dict[str, tuple[Path, Entry]]:
    """Keys of the recordings that come with the program."""
    from traces.samples import sample_names, sample_path

    paths = {name: sample_path(name) for name in sample_names()}
    return {
        f"sample-{name}": (path, Entry(f"sample-{name}", name, "Samples", Trace.open(path).meta["source"]))
        for name, path in paths.items()
    }


def _key(kind: str, name: str, taken: Mapping[str, object]) -> str:
    """A key that fits into an address; numbered where two traces have one name."""
    base = f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)[:60]}"
    return next(key for key in (base, *(f"{base}-{n}" for n in range(2, 10_000))) if key not in taken)
