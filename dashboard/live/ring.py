"""A bounded buffer of rows whose snapshots cost nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traces.schema import Table
from traces.store import Columns, Rows


class Ring:
    """The last rows of a table.

    Rows are written once and never again: a full buffer is left to those who still look at it and its newest rows go on
    in another one. So a snapshot is a view, and stays what it was.

    Args:
        table: whose rows.
        capacity: most rows held; at least 1.

    Attributes:
        dropped: rows that had to go because newer ones came.
    """

    def __init__(self, table: Table, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; expected at least 1")
        self.table = table
        self.capacity = capacity
        self.dropped = 0
        self._fill(np.empty(0, dtype=table.dtype))

    def __len__(self) -> int:
        return self._end - self._start

    def append(self, rows: Rows) -> None:
        """Add rows, ``(n,)``; the oldest go where there are too many."""
        too_many = max(0, len(self) + len(rows) - self.capacity)
        self.dropped += too_many
        if len(rows) >= self.capacity:
            self._fill(rows[-self.capacity :])
            return
        self._start += too_many
        if self._end + len(rows) > len(self._buffer):
            self._fill(self.rows())
        self._buffer[self._end : self._end + len(rows)] = rows
        self._end += len(rows)

    def keep(self, rows: Rows) -> None:
        """Hold these rows instead: what nobody needs any more is let go (not counted as dropped)."""
        self._fill(rows[-self.capacity :])

    def rows(self) -> Rows:
        """All rows, oldest first, ``(len,)``; not to be written to, and never changed later."""
        view = self._buffer[self._start : self._end]
        view.flags.writeable = False
        return view

    def snapshot(self, names: Sequence[str]) -> Columns:
        """Some columns, each ``(len,)``."""
        rows = self.rows()
        return {name: rows[name] for name in names}

    def _fill(self, rows: Rows) -> None:
        """A new buffer with these rows in front. Untouched memory of `np.empty` takes no room."""
        self._buffer = np.empty(2 * self.capacity, dtype=self.table.dtype)
        self._buffer[: len(rows)] = rows
        self._start, self._end = 0, len(rows)
