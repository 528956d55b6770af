"""The log of a sweep: one JSON line a run, appended as runs end, so that a sweep can stop and go on."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scheduler.errors import ConfigError, InputError, UserError

HEAD = '{"batchscope_run": 1, '
"""How every line begins; what begins otherwise is not ours and is left alone."""


class RunLog:
    """A file of finished runs, held by one sweep at a time (see `open_log`).

    Attributes:
        path: the file.
        known: key -> what was recorded under it; the last line with a key counts.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor
        self.known: dict[str, dict[str, Any]] = {}
        self._load()

    def append(self, key: str, entry: Mapping[str, Any]) -> None:
        """Add a run in one write; raises UserError when the disk is full (what is torn is redone next time)."""
        text = HEAD + json.dumps({"key": key, **entry}, allow_nan=False, ensure_ascii=False)[1:] + "\n"
        data = memoryview(text.encode())
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise UserError(f"no space left on device while writing {self.path}") from error
        self.known[key] = dict(entry)

    def _load(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            entry = self._parse(line, number)
            self.known[entry.pop("key")] = entry
        torn = content[whole:]
        if torn:
            self._check_torn(torn)
            os.ftruncate(self._fd, whole)

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line) if line.startswith(HEAD.encode()) else None
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or "key" not in entry:
            raise InputError("is no run of a sweep; expected a new file or one of a sweep", path=self.path, line=number)
        del entry["batchscope_run"]
        return entry

    def _check_torn(self, torn: bytes) -> None:
        """The end of a sweep that was killed while it wrote; anything else is somebody else's file."""
        head = HEAD.encode()
        if not (torn.startswith(head) or head.startswith(torn)):
            raise InputError("is no log of a sweep; expected a new file or one of a sweep", path=self.path)


@contextmanager
def open_log(path: str | Path) -> Iterator[RunLog]:
    """Open a log to go on with, or begin one. A folder means the file ``runs.jsonl`` in it, and is made if need be.

    Raises:
        InputError: the file is none of ours.
        UserError: another sweep holds it, or it cannot be written.
    """
    file = log_path(path)
    try:
        if file != Path(path):
            file.parent.mkdir(exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
    try:
        _hold(file, descriptor)
        yield RunLog(file, descriptor)
    finally:
        os.close(descriptor)


def log_path(path: str | Path) -> Path:
    """The log's file: `path` itself when it ends in ``.jsonl``, ``runs.jsonl`` in it when it is (to be) a folder.

    Raises ConfigError for another kind of file.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        return path
    if path.suffix and not path.is_dir():
        raise ConfigError(f"cannot keep a sweep in {path}; expected NAME.jsonl, NAME.json, NAME.csv or a folder")
    return path / "runs.jsonl"


def _hold(file: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(f"another sweep is writing {file}") from error
    except OSError:
        return  # a file system without locks: two sweeps at once are then the user's to avoid
