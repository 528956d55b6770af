"""The runs that the dashboard keeps: what was asked, how it went, and the trace or result."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scheduler.errors import UserError

from .folders import MAX_AGE_S, MAX_BYTES, Entry, Folders, read_json, write_json
from .sandbox import SCRATCH

State = Literal["queued", "running", "done", "failed", "cancelled"]
STATE = "state.json"
TRACE = "run.trace"
RESULT = "result.json"
EXPLANATION = "explain.json"
CUT_SHORT = "the dashboard was stopped before this run ended; run it again"
"""Of a run that a stopped dashboard left behind."""


@dataclass(frozen=True)
class StoredRun:
    """One run as it is on disk at the moment.

    Attributes:
        id: unguessable; who has it may read the run.
        folder: where it is kept.
        request: what was asked, see `dashboard.runs.request.RunRequest`.
        created_s: when it was asked for, seconds since 1970.
        state: how far it is.
        sentence: of a run that failed or was cancelled: why.
    """

    id: str
    folder: Path
    request: Mapping[str, Any]
    created_s: float
    state: State
    sentence: str

    @property
    def label(self) -> str:
        """What people call it."""
        return str(self.request.get("label") or "")

    @property
    def active(self) -> bool:
        """Whether it still waits or runs."""
        return self.state in ("queued", "running")

    @property
    def trace_path(self) -> Path | None:
        """The folder of its step trace, also while it grows; None where there is none."""
        path = self.folder / TRACE
        return path if (path / "meta.json").is_file() else None

    @property
    def result(self) -> dict[str, Any] | None:
        """A sweep's result, as `simulator.sweep.Sweep.result`."""
        return read_json(self.folder / RESULT)

    @property
    def explanation(self) -> dict[str, Any] | None:
        """What `simulator.explain` says of the run, or ``{"error": sentence}``; None where it was not asked."""
        return read_json(self.folder / EXPLANATION)


class RunStore:
    """Runs under `root`, a folder each; they survive a restart of the dashboard.

    A link (the id) lets anybody read a run; lists show a person's own, and only the owner may remove one. Runs that
    an earlier dashboard left unfinished are failed ones.

    Args:
        root: the folder of all runs; this process alone uses it until `close`.
        max_age_s: seconds after which a run goes.
        max_bytes: of all runs together; the oldest go first.
        clock: seconds since 1970.

    Raises:
        UserError: the folder cannot be used, or another dashboard uses it.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        max_age_s: float = MAX_AGE_S,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folders = Folders(root, "run", max_age_s=max_age_s, max_bytes=max_bytes, clock=clock)
        for entry in self._folders.all():
            if self._run(entry).active:
                self.set_state(entry.id, "failed", CUT_SHORT)

    def create(self, owner: str, request: Mapping[str, Any]) -> StoredRun:
        """A new run, queued. `request` is kept as given; `owner` is an opaque token."""
        return self._run(self._folders.create(owner, request, _queued))

    def get(self, run_id: object) -> StoredRun:
        """The run behind an id; raises UnknownId (a UserError)."""
        return self._run(self._folders.get(run_id))

    def own(self, owner: str) -> list[StoredRun]:
        """A person's own runs, newest first."""
        return [self._run(entry) for entry in self._folders.own(owner)]

    def own_one(self, run_id: object, owner: str) -> StoredRun:
        """The run behind an id, for its owner alone; raises UnknownId for anybody else."""
        return self._run(self._folders.own_one(run_id, owner))

    def remove(self, run_id: object, owner: str) -> None:
        """Remove one's own run; raises UserError for another's, or one that still waits or runs."""
        entry = self._folders.own_one(run_id, owner)
        with self._folders.guarded():
            if self._run(entry).active:
                raise UserError("this run has not ended; cancel it before you remove it")
            self._folders.remove(entry)

    def evict(self, now_s: float) -> list[str]:
        """Remove the runs that are too old, then the oldest that are too many; never one that waits or runs.

        Returns the ids removed.
        """
        return self._folders.evict(now_s, lambda entry: self._run(entry).active)

    def set_state(self, run_id: str, state: State, sentence: str = "") -> None:
        """Note how far a run is."""
        with self._folders.guarded():
            write_state(self._folders.get(run_id).folder, state, sentence)

    def close(self) -> None:
        """Let another dashboard use the folder."""
        self._folders.close()

    def _run(self, entry: Entry) -> StoredRun:
        state = read_json(entry.folder / STATE) or {"state": "failed", "sentence": "this run's folder is not whole"}
        return StoredRun(entry.id, entry.folder, entry.about, entry.created_s, state["state"], state["sentence"])


def _queued(folder: Path) -> Mapping[str, Any]:
    write_state(folder, "queued")
    return {}


def write_state(folder: Path, state: State, sentence: str = "") -> None:
    """Note in a run's folder how far it is. What a run wrote that did not end well goes."""
    if state in ("failed", "cancelled"):
        shutil.rmtree(folder / TRACE, ignore_errors=True)
    if state not in ("queued", "running"):
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)
    write_json(folder / STATE, {"state": state, "sentence": sentence})
