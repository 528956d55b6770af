"""The reader of step traces: finished, running and killed ones alike."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError

from . import schema
from .archive import last_of_each_request, read_names
from .replay import PlanReplay, PlanRow
from .schema import CODES
from .spans import pair_spans
from .store import CHUNK_ROWS, Columns, is_locked, read_meta, read_row_columns, read_rows, remove_folder, row_chunks

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["finished", "stopped", "running", "killed"]
_ATTEMPTS = 3  # a row file may turn into Parquet between our looking for the one and the other


class Trace:
    """A step trace as it is on disk when opened.

    `steps`, `requests`, `spans` and `gaps` are pandas frames, with codes as names; `columns` gives numpy arrays.

    Attributes:
        path: the trace's folder.
        meta: what the run was (`meta.json`).
        status: ``finished``; ``stopped`` early but closed in order; still ``running``; or ``killed``.
    """

    def __init__(self, path: Path, meta: dict[str, Any], status: Status) -> None:
        self.path = path
        self.meta = meta
        self.status = status

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Open a trace's folder; raises InputError when it is none, or one we cannot read."""
        folder = Path(path)
        running = folder.is_dir() and is_locked(folder)
        meta = read_meta(folder)
        status: Status = "running" if running else "killed"
        if meta.get("closed"):
            status = "finished" if meta.get("complete") else "stopped"
        return cls(folder, meta, status)

    def __repr__(self) -> str:
        return f"Trace({str(self.path)!r}, {self.status})"

    def own_folder(self) -> None:
        """Remove the folder when this object goes (temporary traces)."""
        self._finalizer = weakref.finalize(self, remove_folder, str(self.path), os.getpid())

    def columns(self, table: str, names: Sequence[str] | None = None, start: int = 0) -> Columns:
        """Columns of a table as numpy arrays, each ``(rows,)``; codes as numbers.

        Args:
            table: ``steps``, ``spans``, ``requests``, ``gaps``, ``plans`` or ``blocks``.
            names: which columns; None: all of the schema.
            start: leave out this many rows (to read only what a running trace has gained).

        Raises:
            InputError: a file of the trace is missing or broken.
        """
        names = schema.table_named(table).names if names is None else list(names)
        for _ in range(_ATTEMPTS):
            try:
                if self._is_parquet(table):
                    return self._parquet_columns(table, names, start)
                return self._row_columns(table, names, start)
            except FileNotFoundError:
                continue  # it has just become Parquet
        raise self._missing(table)

    def chunks(self, table: str, names: Sequence[str] | None = None) -> Iterator[Columns]:
        """The same columns in pieces of at most 65,536 rows, so that memory stays flat; never an empty piece.

        `spans` and `requests` of a trace that is not Parquet come from their whole table.
        """
        names = schema.table_named(table).names if names is None else list(names)
        if self._is_parquet(table):
            yield from self._parquet_chunks(table, names)
        elif table in ("spans", "requests"):
            whole = self.columns(table, names)
            for start in range(0, len(whole[names[0]]), CHUNK_ROWS):
                yield {name: column[start : start + CHUNK_ROWS] for name, column in whole.items()}
        else:
            for rows in row_chunks(self.path, schema.RECORDED[table]):
                yield {name: np.ascontiguousarray(rows[name]) for name in names}

    def column(self, table: str, name: str) -> npt.NDArray[Any]:
        """One column."""
        return self.columns(table, [name])[name]

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a step."""
        return self._frame("steps")

    @cached_property
    def spans(self) -> pd.DataFrame:
        """Who did what from which step to which: the picture of slots x steps."""
        return self._frame("spans")

    @cached_property
    def gaps(self) -> pd.DataFrame:
        """Times between deliveries, with their counts."""
        return self._frame("gaps")

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, with its `name`, and `token_times_s` when they were kept."""
        import pandas as pd

        frame = self._frame("requests")
        names = self.names()
        frame.insert(1, "name", [names.get(index, str(index)) for index in frame["request"].tolist()])
        times = self.token_times()
        if times is not None:
            lists = [times.get(index, np.empty(0)) for index in frame["request"].tolist()]
            frame["token_times_s"] = pd.Series(lists, dtype=object)
        return frame

    def names(self) -> dict[int, str]:
        """Request number -> its name, for those whose name is not their number."""
        stored = self._optional_request_column("name")
        if stored is None:
            return read_names(self.path)
        request = self.column("requests", "request")
        return {int(index): name for index, name in zip(request, stored.to_pylist(), strict=True) if name is not None}

    def token_times(self) -> dict[int, npt.NDArray[np.float64]] | None:
        """Request number -> when its tokens were delivered, seconds; None when that was not kept."""
        if not self.meta.get("token_times"):
            return None
        stored = self._optional_request_column("token_times_s")
        if stored is not None:
            lists = [np.asarray(values, dtype=np.float64) for values in stored.to_pylist()]
            return dict(zip(self.column("requests", "request").tolist(), lists, strict=True))
        if not (self.path / "tokens.rows").exists():
            return {}
        rows = read_rows(self.path, schema.TOKENS)
        first = np.flatnonzero(np.diff(rows["request"], prepend=-1))
        runs = np.split(np.ascontiguousarray(rows["time_s"]), first[1:]) if len(first) else []
        return dict(zip(rows["request"][first].tolist(), runs, strict=True))

    def summary(self, slo: Mapping[str, float] | None = None) -> dict[str, Any]:
        """The metrics of the run, see `traces.metrics.summarize`."""
        from .metrics import summarize

        return summarize(self, slo)

    def plan_at(self, step: int) -> list[PlanRow]:
        """Rows of a step in running order: ``(request, slot, computed, scheduled, samples)``.

        Raises LookupError when plans were not kept or there is no such step.
        """
        return self._replay.plan_at(step)

    def block_table_at(self, step: int) -> dict[int, list[int]]:
        """Request -> the KV blocks it holds in a step, in logical order. Raises LookupError like `plan_at`."""
        return self._replay.block_table_at(step)

    def arrived_before(self, step: int) -> list[int]:
        """Requests that a step's plan saw for the first time. Raises LookupError like `plan_at`."""
        return self._replay.events_at(step, schema.ARRIVED)

    @cached_property
    def _replay(self) -> PlanReplay:
        if not self.meta.get("plans"):
            raise LookupError(f"{self.path}: this trace was recorded without plans")
        return PlanReplay(self.column("steps", "step"), self.columns("plans"), self.columns("blocks"))

    def _is_parquet(self, table: str) -> bool:
        rows = (self.path / f"{table}.rows").exists()  # looked for first: it goes only when the other is there
        parquet = (self.path / f"{table}.parquet").exists()
        if not rows and not parquet:
            raise self._missing(table)
        return parquet

    def _missing(self, table: str) -> InputError:
        return InputError(
            f"the trace holds no table {table!r}; expected {table}.parquet or {table}.rows", path=self.path
        )

    def _frame(self, table: str) -> pd.DataFrame:
        import pandas as pd

        columns: dict[str, Any] = dict(self.columns(table))
        for name in columns.keys() & CODES.keys():
            columns[name] = pd.Categorical.from_codes(columns[name], categories=pd.Index(CODES[name]))
        return pd.DataFrame(columns, copy=False)

    def _parquet_columns(self, table: str, names: list[str], start: int) -> Columns:
        read = self._read_parquet(table, names)
        return {name: read.column(name).slice(start).to_numpy() for name in names}

    def _row_columns(self, table: str, names: list[str], start: int) -> Columns:
        if table == "spans":
            steps = read_row_columns(self.path, schema.STEPS, ["step"])["step"]
            spans = pair_spans(read_rows(self.path, schema.SPAN_EVENTS), int(steps[-1]) if len(steps) else -1)
            return {name: spans[name][start:] for name in names}
        if table == "requests":
            rows = last_of_each_request(read_rows(self.path, schema.REQUESTS))
            return {name: np.ascontiguousarray(rows[name][start:]) for name in names}
        return read_row_columns(self.path, schema.RECORDED[table], names, start)

    def _optional_request_column(self, name: str) -> Any:
        """A column of the Parquet file of requests that need not be there."""
        import pyarrow.parquet as pq

        file = self.path / "requests.parquet"
        if not file.exists() or name not in pq.read_schema(file).names:
            return None
        return self._read_parquet("requests", [name]).column(name)

    def _read_parquet(self, table: str, names: list[str]) -> Any:
        import pyarrow.parquet as pq

        file = self.path / f"{table}.parquet"
        with _parquet_errors(file):
            return pq.read_table(file, columns=names, partitioning=None)

    def _parquet_chunks(self, table: str, names: list[str]) -> Iterator[Columns]:
        import pyarrow.parquet as pq

        file = self.path / f"{table}.parquet"
        with _parquet_errors(file), pq.ParquetFile(file) as reader:
            for batch in reader.iter_batches(CHUNK_ROWS, columns=names):
                yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}


@contextmanager
def _parquet_errors(file: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"is no whole Parquet file of a trace: {str(error).splitlines()[0]}", path=file) from error
