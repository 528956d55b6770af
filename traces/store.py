"""A trace's folder: append-only row files, `meta.json`, the lock of who records, and reading rows back."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError, UserError

from .atomic import atomic_path
from .schema import CODES, RECORDED, SCHEMA_VERSION, STEPS, Table

META = "meta.json"
NAMES = "names.jsonl"
WORKLOAD = "workload.jsonl"
"""What a measured run was asked and gave, as a workload, where that was kept: enough to simulate it."""
VALIDATION = "validation.json"
"""How a simulated run compares with the measured one that it forecasts, where that was done."""
LOCK = "steps.rows"
"""Locked (flock) by the recorder as long as it lives; a reader learns from it whether the trace still grows."""
CHUNK_ROWS = 1 << 16

Columns = dict[str, npt.NDArray[Any]]
Rows = npt.NDArray[np.void]


class RowFile:
    """An append-only file of records. Rows are collected in `rows` and leave in one write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[bytes] = []
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def fileno(self) -> int:
        """The open file, for locking."""
        return self._fd

    def flush(self) -> None:
        """Append what was collected; raises UserError when the disk is full."""
        if not self.rows:
            return
        data = memoryview(b"".join(self.rows))
        self.rows.clear()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            remove_if_useless(self.path.parent)
            raise _write_error(self.path, error) from error

    def close(self) -> None:
        """Close the file without writing."""
        os.close(self._fd)


def prepare_folder(path: Path, source: str | None = None) -> None:
    """Make an empty trace folder; an older trace there is removed, unless it is a measured run and the new one, by its
    `source`, is none. Raises UserError for that and for anything else in the way.
    """
    try:
        if path.is_dir():
            if source != "measured":
                _keep_measured(path)
            _clear_old_trace(path)
        path.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"cannot record a trace in {path}: a file of that name exists") from error
    except FileNotFoundError as error:
        raise UserError(f"cannot record a trace in {path}: there is no folder {path.parent}") from error
    except OSError as error:
        raise _write_error(path, error) from error


def _keep_measured(path: Path) -> None:
    """A simulation can be done again, a measurement cannot."""
    try:
        source = json.loads((path / META).read_bytes()).get("source")
    except (OSError, ValueError, AttributeError):  # whatever it is, it is no trace of a measured run
        return
    if source == "measured":
        raise UserError(f"{path} holds a measured run; a simulated one is not written over it: name another folder")


def lock(file: RowFile) -> None:
    """Mark a trace as being recorded until this process closes the file or dies."""
    # a file system without locks still records; its readers then take a running trace for a killed one
    with contextlib.suppress(OSError):
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether a recorder still holds the trace in this folder."""
    try:
        fd = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def write_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Write `meta.json` whole or not at all; a folder that stays without a step because of that is removed."""
    try:
        with atomic_path(path / META) as temporary:
            temporary.write_text(json.dumps(meta, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except UserError:
        remove_if_useless(path)
        raise


def describe_tables() -> dict[str, Any]:
    """What `meta.json` says about the row files, so that they can be read without this program."""
    tables = {table.name: [[c.name, table.dtype[c.name].str] for c in table.columns] for table in RECORDED.values()}
    return {"schema_version": SCHEMA_VERSION, "row_files": tables, "codes": {k: list(v) for k, v in CODES.items()}}


def read_meta(path: Path) -> dict[str, Any]:
    """`meta.json` of a trace; raises InputError with what is wrong when this is no trace we can read."""
    if not path.exists():
        raise InputError("there is no such trace; expected a folder NAME.trace", path=path)
    if not path.is_dir():
        raise InputError("is a file; expected the folder of a step trace (NAME.trace)", path=path)
    file = path / META
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"is no step trace: it holds no {META}", path=path) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError("is not whole JSON; expected the description of a step trace", path=file) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=file) from error
    _check_version(file, meta)
    return meta  # type: ignore[no-any-return]  # checked to be a dict above


def read_rows(path: Path, table: Table, start: int = 0) -> Rows:
    """Rows of a row file from number `start` on, shape ``(rows,)``; a torn last row is left out."""
    file = path / f"{table.name}.rows"
    size = file.stat().st_size // table.dtype.itemsize
    count = max(0, size - start)
    return np.fromfile(file, dtype=table.dtype, count=count, offset=min(start, size) * table.dtype.itemsize)


def row_chunks(path: Path, table: Table, start: int = 0) -> Iterator[Rows]:
    """The same in pieces, so that memory stays flat whatever the length; never an empty piece."""
    itemsize = table.dtype.itemsize
    with open(path / f"{table.name}.rows", "rb") as file:  # held open: the file may become Parquet meanwhile
        left = os.fstat(file.fileno()).st_size // itemsize - start
        file.seek(start * itemsize)
        while left > 0:
            rows = np.fromfile(file, dtype=table.dtype, count=min(CHUNK_ROWS, left))
            left -= len(rows)
            yield rows


def read_row_columns(path: Path, table: Table, names: Sequence[str], start: int = 0) -> Columns:
    """Some columns of a row file, each ``(rows,)``, without holding the rest."""
    size = (path / f"{table.name}.rows").stat().st_size // table.dtype.itemsize
    columns = {name: np.empty(max(0, size - start), dtype=table.dtype[name]) for name in names}
    done = 0
    for rows in row_chunks(path, table, start):
        take = min(len(rows), max(0, size - start) - done)  # the file may have grown since
        for name in names:
            columns[name][done : done + take] = rows[name][:take]
        done += take
    return columns


def remove_folder(path: str, owner: int) -> None:
    """Remove a temporary trace, but only in the process that made it (a fork's copy must not)."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _clear_old_trace(path: Path) -> None:
    entries = [entry for entry in path.iterdir() if not entry.name.startswith(".meta.")]
    if not entries:
        return
    if not (path / META).is_file():
        raise UserError(f"cannot record a trace in {path}: the folder is not empty and holds no step trace")
    if is_locked(path):
        raise UserError(f"cannot record a trace in {path}: another run is recording there")
    _unlink_trace_files(entries)


def _unlink_trace_files(entries: Iterable[Path]) -> None:
    for entry in entries:
        if entry.name in (META, NAMES, WORKLOAD, VALIDATION) or entry.suffix in (".rows", ".parquet"):
            entry.unlink()


def remove_if_useless(path: Path) -> None:
    """Remove a trace that holds no whole step, after a failure: nobody could learn anything from it."""
    steps = path / LOCK
    if any(path.glob("*.parquet")) or (steps.exists() and steps.stat().st_size >= STEPS.dtype.itemsize):
        return
    with contextlib.suppress(OSError):  # something else lies there: then the folder stays
        _unlink_trace_files(list(path.iterdir()))
        path.rmdir()


def _check_version(file: Path, meta: object) -> None:
    version = meta.get("schema_version") if isinstance(meta, dict) else None
    if version is None:
        raise InputError("holds no schema_version; expected the description of a step trace", path=file)
    if version != SCHEMA_VERSION:
        raise InputError(f"schema_version is {version!r}; this program reads {SCHEMA_VERSION}", path=file)


def _write_error(path: Path, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"no space left on device while writing {path}")
    return UserError(f"cannot write {path}: {error.strerror}")
