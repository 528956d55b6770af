"""A run to show: a recorded trace behind a face that live ones share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from traces.trace import Trace

from .memo import Memo

Column = npt.NDArray[Any]


class Run(Protocol):
    """What panels ask of a run.

    Attributes:
        key: its name in addresses.
        name: what people call it.
        status: ``finished``, ``stopped``, ``running`` or ``killed``.
        trace: the trace behind it; None of a live one.
    """

    key: str
    name: str
    status: str
    trace: Trace | None

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the run was (`meta.json`)."""

    @property
    def source(self) -> str:
        """``simulated`` or ``measured``."""

    @property
    def slots_total(self) -> int:
        """Seats."""

    @property
    def num_steps(self) -> int:
        """Steps held."""

    @property
    def origin_s(self) -> float:
        """Where its time axis is 0: the first arrival, or the first step where that came before."""

    def column(self, table: str, name: str) -> Column:
        """A column of `steps`, `spans`, `requests` or `gaps`, ``(rows,)``, not to be written to."""

    def names(self) -> Mapping[int, str]:
        """Request number -> its name, for those whose name is not their number."""


class TraceRun:
    """A run from a trace's folder. Columns are read when first asked for and kept as long as the run."""

    def __init__(self, key: str, name: str, trace: Trace) -> None:
        self.key = key
        self.name = name
        self.trace: Trace | None = trace
        self.status: str = trace.status
        self._trace = trace
        self._columns = Memo()

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the run was (`meta.json`)."""
        return self._trace.meta

    @property
    def source(self) -> str:
        """``simulated`` or ``measured``."""
        return str(self.meta.get("source", "unknown"))

    @property
    def slots_total(self) -> int:
        """Seats."""
        return int(self.meta.get("slots_total", 0))

    @property
    def num_steps(self) -> int:
        """Steps held."""
        return len(self.column("steps", "step"))

    @cached_property
    def origin_s(self) -> float:
        """Where its time axis is 0: the first arrival, or the first step where that came before."""
        firsts = [self.column("requests", "arrival_s"), self.column("steps", "t_start_s")[:1]]
        return float(min((column.min() for column in firsts if len(column)), default=0.0))

    def column(self, table: str, name: str) -> Column:
        """A column of the trace, ``(rows,)``, not to be written to."""
        return self._columns.get((table, name), lambda: self._read(table, name))

    def _read(self, table: str, name: str) -> Column:
        column = np.ascontiguousarray(self._trace.column(table, name))
        column.flags.writeable = False
        return column

    def names(self) -> Mapping[int, str]:
        """Request number -> its name, for those whose name is not their number."""
        return self._names

    @cached_property
    def _names(self) -> dict[int, str]:
        return self._trace.names()

    def held_bytes(self) -> int:
        """Memory that its columns take."""
        return sum(column.nbytes for column in list(self._columns.values.values()))
