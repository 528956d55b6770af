"""Following the tables of a trace that is being recorded, by place in the file; nothing is read twice."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from traces.schema import CODES, RECORDED
from traces.store import Rows

Row = dict[str, Any]


class TableTail:
    """Rows of one table from a given one on. A context manager; it keeps the file open, so that it survives the end of
    the recording (the row file may become Parquet).

    Args:
        folder: the trace's.
        table: ``steps``, ``spans``, ``requests``, ...
        start: number of the first row.

    Raises:
        FileNotFoundError: the recording has ended and its rows are elsewhere.
    """

    def __init__(self, folder: Path, table: str, start: int = 0) -> None:
        self._table = RECORDED[table]
        self._size = self._table.dtype.itemsize
        self.next = start
        """Number of the row that comes next."""
        self._fd = os.open(folder / f"{table}.rows", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> TableTail:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __len__(self) -> int:
        """Whole rows that the file holds now."""
        return os.fstat(self._fd).st_size // self._size

    def read(self, most: int) -> list[Row]:
        """Rows that have come since, at most so many."""
        data = os.pread(self._fd, most * self._size, self.next * self._size)
        rows = np.frombuffer(data[: len(data) - len(data) % self._size], dtype=self._table.dtype)
        self.next += len(rows)
        return list(_plain(rows, self._table.names))


def _plain(rows: Rows, names: Sequence[str]) -> Iterator[Row]:
    """Rows as JSON holds them: codes by name, null where a number is missing."""
    coded = {name: CODES[name] for name in names if name in CODES}
    floats = [name for name in names if rows.dtype[name].kind == "f"]
    for values in rows.tolist():
        row = dict(zip(names, values, strict=True))
        for name, words in coded.items():
            row[name] = words[row[name]]
        for name in floats:
            if not math.isfinite(row[name]):
                row[name] = None
        yield row
