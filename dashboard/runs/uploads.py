"""What people upload: workloads and step traces, looked at in a process of their own before they are kept."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from scheduler.errors import InputError, UserError
from traces.formats import read_workload
from traces.workload import Workload

from .folders import ABOUT, MAX_AGE_S, MAX_BYTES, Entry, Folders, UnknownId, is_id, read_json
from .sandbox import GIB, SCRATCH, Limits, start, wait

Kind = Literal["workload", "trace"]
MOST_UPLOAD_BYTES = 64 * 2**20
"""Of one upload, as it comes."""
DATA = "upload.data"
"""A workload's file, or while it is looked at a trace's zip."""
TRACE = "upload.trace"
VERDICT = "verdict.json"
LOG = "look.log"
_PATIENCE_S = 180.0
"""Seconds on the clock for looking at one upload."""
_LIMITS = Limits(memory_bytes=4 * GIB, cpu_s=120, file_bytes=1 * GIB)


@dataclass(frozen=True)
class Upload:
    """Something uploaded, found sound.

    Attributes:
        id: unguessable; who has it may use the upload.
        kind: ``workload`` or ``trace``.
        name: the user's file name; it stays text wherever it is shown.
        created_s: when it came, seconds since 1970.
        facts: of a workload `Workload.stats`; of a trace ``steps``, ``requests``, ``source``, ``policy``, ``status``.
        path: the file, or the trace's folder.
    """

    id: str
    kind: Kind
    name: str
    created_s: float
    facts: Mapping[str, Any]
    path: Path

    @property
    def requests(self) -> int:
        """Requests in it."""
        return int(self.facts["requests"])


class StoredUploads:
    """Uploads as others find them, for instance a worker: nothing is changed, so nothing is locked."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def workload(self, upload_id: str) -> Workload:
        """The workload behind an id; raises UserError."""
        told = read_json(self.root / upload_id / ABOUT) if is_id(upload_id) else None
        if told is None or told["about"]["kind"] != "workload":
            raise UnknownId("there is no uploaded workload of this id; it was removed: upload it again")
        return read_named(self.root / upload_id / DATA, told["about"]["name"])


class Uploads:
    """Uploads under `root`, a folder each, kept like runs.

    Args:
        root: this process alone uses it until `close`.
        max_bytes: of all uploads together; the oldest go first.
        max_age_s: seconds after which one goes.
        most_upload_bytes: of one upload.
        limits: what looking at one may take.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        max_bytes: int = MAX_BYTES,
        max_age_s: float = MAX_AGE_S,
        most_upload_bytes: int = MOST_UPLOAD_BYTES,
        limits: Limits = _LIMITS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folders = Folders(root, "upload", max_age_s=max_age_s, max_bytes=max_bytes, clock=clock)
        self.most_upload_bytes, self._limits, self._clock = most_upload_bytes, limits, clock
        self._one_at_a_time = threading.Lock()

    @property
    def root(self) -> Path:
        """Where uploads are kept."""
        return self._folders.root

    def add_workload(self, owner: str, filename: str, data: bytes) -> Upload:
        """Keep a workload of any known format; raises UserError with the reader's own sentence about `filename`."""
        return self._add("workload", owner, filename, data)

    def add_trace(self, owner: str, filename: str, data: bytes) -> Upload:
        """Keep a step trace, the zip of a folder NAME.trace; raises UserError about `filename`."""
        return self._add("trace", owner, filename, data)

    def get(self, upload_id: object) -> Upload:
        """The upload behind an id; raises UnknownId (a UserError)."""
        return _upload(self._folders.get(upload_id))

    def own(self, owner: str) -> list[Upload]:
        """A person's own uploads, newest first."""
        return [_upload(entry) for entry in self._folders.own(owner)]

    def workload(self, upload_id: str) -> Workload:
        """The workload behind an id; raises UserError."""
        return StoredUploads(self.root).workload(upload_id)

    def remove(self, upload_id: object, owner: str) -> None:
        """Remove one's own upload; raises UnknownId for another's."""
        self._folders.remove(self._folders.own_one(upload_id, owner))

    def evict(self, now_s: float) -> list[str]:
        """Remove the uploads that are too old, then the oldest that are too many; returns their ids."""
        return self._folders.evict(now_s)

    def close(self) -> None:
        """Let another dashboard use the folder."""
        self._folders.close()

    def _add(self, kind: Kind, owner: str, filename: str, data: bytes) -> Upload:
        name = shown_name(filename)
        if len(data) > self.most_upload_bytes:
            most = f"{self.most_upload_bytes / 2**20:,.3g} MiB"
            raise InputError(f"has {len(data) / 2**20:,.1f} MiB; expected at most {most}", path=name)

        def fill(folder: Path) -> Mapping[str, Any]:
            (folder / DATA).write_bytes(data)
            return {"facts": self._look_at(kind, folder, name)}

        with self._one_at_a_time:
            self.evict(self._clock())
            return _upload(self._folders.create(owner, {"kind": kind, "name": name}, fill))

    def _look_at(self, kind: Kind, folder: Path, name: str) -> dict[str, Any]:
        """What the upload is, told by a process that it may harm; raises UserError."""
        with open(folder / LOG, "wb") as log:
            process = start("dashboard.runs.look", [kind, str(folder), name], self._limits, folder=folder, log=log)
            code = wait(process, _PATIENCE_S)
        verdict = read_json(folder / VERDICT)
        if verdict is None:
            why = self._limits.time_sentence() if code is None else self._limits.ended_by(-code)
            raise InputError(f"cannot be read: {why}", path=name)
        if "error" in verdict:
            raise UserError(verdict["error"])
        for left in (VERDICT, LOG):
            (folder / left).unlink()
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)
        return dict(verdict["facts"])


def shown_name(filename: str) -> str:
    """A user's file name as people read it: no folders, nothing unprintable, of sensible length."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in name if letter.isprintable()).strip()[:100] or "upload"


def read_named(path: Path, name: str) -> Workload:
    """A workload from our copy of a user's file, with the user's name for it in every sentence; raises UserError."""
    try:
        return replace(read_workload(path), name=name)
    except UserError as error:
        raise InputError(str(error).replace(f"{path}", name)) from error


def _upload(entry: Entry) -> Upload:
    kind: Kind = entry.about["kind"]
    path = entry.folder / (DATA if kind == "workload" else TRACE)
    return Upload(entry.id, kind, entry.about["name"], entry.created_s, entry.about["facts"], path)
