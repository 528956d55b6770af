"""Folders with unguessable names, each somebody's, kept until they are too old or too many."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.errors import UserError
from traces.atomic import atomic_path

MAX_AGE_S = 7 * 86400.0
MAX_BYTES = 2 * 2**30
ABOUT = "request.json"
_ID = re.compile(r"[A-Za-z0-9_-]{22}")  # what secrets.token_urlsafe(16) makes: 128 bits


class UnknownId(UserError, LookupError):
    """There is nothing behind an id, or nothing of that person's."""


@dataclass(frozen=True)
class Entry:
    """One folder.

    Attributes:
        id: unguessable; who has it may read.
        folder: where it is.
        owner: SHA-256 of the owner's token.
        created_s: when it was made, seconds since 1970.
        about: what was said of it then.
    """

    id: str
    folder: Path
    owner: str
    created_s: float
    about: Mapping[str, Any]

    def size_bytes(self) -> int:
        """Bytes of all files in it; of those that go meanwhile, none."""
        return sum(_size(path) for path in self.folder.rglob("*"))


class Folders:
    """Folders under `root`, one a run or an upload; this process alone uses them until `close`.

    Args:
        root: made where it is missing.
        what: what a folder holds, for sentences: ``run``.
        max_age_s: seconds after which one goes.
        max_bytes: of all together; the oldest go first.
        clock: seconds since 1970.

    Raises:
        UserError: the root cannot be used, or another dashboard uses it.
    """

    def __init__(
        self,
        root: str | Path,
        what: str,
        *,
        max_age_s: float = MAX_AGE_S,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root = Path(root).absolute()
        self.what, self.max_age_s, self.max_bytes, self._clock = what, max_age_s, max_bytes, clock
        self._guard = threading.RLock()
        self._lock = _lock_root(self.root)
        self._entries = {entry.id: entry for entry in _found(self.root)}

    def close(self) -> None:
        """Let others use the root."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def create(self, owner: str, about: Mapping[str, Any], fill: Callable[[Path], Mapping[str, Any]]) -> Entry:
        """A new folder of `owner`'s, whole or not at all.

        Args:
            owner: an opaque token; only its SHA-256 is kept.
            about: what it is, as JSON can hold it.
            fill: puts in what belongs there, before anybody sees it, and returns what else there is to say of it; when
                it raises, the folder goes.
        """
        new_id = secrets.token_urlsafe(16)
        folder = self.root / new_id
        folder.mkdir(mode=0o700)
        try:
            entry = Entry(new_id, folder, owner_hash(owner), self._clock(), {**about, **fill(folder)})
            told = {"owner": entry.owner, "created_s": entry.created_s, "about": entry.about}
            write_json(folder / ABOUT, told)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        with self._guard:
            self._entries[new_id] = entry
        return entry

    def get(self, asked: object) -> Entry:
        """The folder behind an id; raises UnknownId. What is no id never reaches the file system."""
        entry = self._entries.get(str(asked)) if is_id(asked) else None
        if entry is None:
            raise UnknownId(f"there is no {self.what} of this id; it was removed, or the link is not whole")
        return entry

    def all(self) -> list[Entry]:
        """All of them, newest first."""
        with self._guard:
            return sorted(self._entries.values(), key=_age, reverse=True)

    def own(self, owner: str) -> list[Entry]:
        """A person's own, newest first."""
        mine = owner_hash(owner)
        return [entry for entry in self.all() if entry.owner == mine]

    def own_one(self, asked: object, owner: str) -> Entry:
        """The folder behind an id, for its owner alone; raises UnknownId for anybody else."""
        entry = self.get(asked)
        if entry.owner != owner_hash(owner):
            raise UnknownId(f"this {self.what} is somebody else's; you can read it, not change it")
        return entry

    def remove(self, entry: Entry) -> None:
        """Remove a folder and all that is in it."""
        with self._guard:
            self._entries.pop(entry.id, None)
        shutil.rmtree(entry.folder, ignore_errors=True)

    def evict(self, now_s: float, busy: Callable[[Entry], bool] = lambda entry: False) -> list[str]:
        """Remove what is older than `max_age_s`, then the oldest until `max_bytes` hold the rest; never what is `busy`.

        Returns the ids removed.
        """
        kept, removed = [], []
        for entry in self.all():
            if now_s - entry.created_s > self.max_age_s and not busy(entry):
                self.remove(entry)
                removed.append(entry.id)
            else:
                kept.append((entry, entry.size_bytes()))
        too_many = sum(size for _, size in kept) - self.max_bytes
        for entry, size in reversed(kept):
            if too_many > 0 and not busy(entry):
                self.remove(entry)
                removed.append(entry.id)
                too_many -= size
        return removed

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Within the block no other thread changes anything here."""
        with self._guard:
            yield


def is_id(asked: object) -> bool:
    """Whether this can be an id at all: then it is also the plain name of a folder."""
    return isinstance(asked, str) and _ID.fullmatch(asked) is not None


def owner_hash(owner: str) -> str:
    """What is kept of an owner's token."""
    return hashlib.sha256(owner.encode()).hexdigest()


def write_json(path: Path, value: object) -> None:
    """Write a JSON file whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any] | None:
    """An object that `write_json` wrote; None where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # gone, or somebody else's: not ours to mend
        return None
    return found if isinstance(found, dict) else None


def _lock_root(root: Path) -> int | None:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"{root} cannot hold the dashboard's runs: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise UserError(f"another dashboard uses {root}; give this one a folder of its own with --runs-dir") from error
    return fd


def _found(root: Path) -> Iterator[Entry]:
    """What an earlier dashboard left; folders that it did not finish go."""
    for folder in root.iterdir():
        if not _ID.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        told = read_json(folder / ABOUT)
        if told is None or not {"owner", "created_s", "about"} <= told.keys():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            yield Entry(folder.name, folder, told["owner"], float(told["created_s"]), told["about"])


def _age(entry: Entry) -> tuple[float, str]:
    return entry.created_s, entry.id


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size if not path.is_dir() else 0
    except FileNotFoundError:
        return 0
