"""Whether a trace from somewhere is what it says, so that no page stumbles over it."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError, UserError
from traces import schema
from traces.schema import CODES, Table
from traces.store import META, NAMES, VALIDATION, WORKLOAD, Columns
from traces.trace import Trace

FILES = frozenset(
    {META, NAMES, VALIDATION, WORKLOAD}
    | {f"{name}.rows" for name in schema.RECORDED}
    | {f"{name}.parquet" for name in schema.READABLE if name != schema.TOKENS.name}
)
"""Names of all files that a trace may hold."""
MOST_META_BYTES = 16 * 2**20
MOST_ROWS = 50_000_000
"""Of one table."""
MOST_SLOTS = 1_000_000
"""As many as a scheduler can have."""
MOST_NAME = 1_000
"""Characters of a request's name."""
MOST_SECONDS = 1e12
MOST_AHEAD = 65_536
"""Steps or requests that a table of a trace that was cut may be ahead of another: far more than one write holds."""
_TABLES = ("steps", "requests", "spans", "gaps")
"""In the order in which they are read: the later ones speak of steps and requests."""
_LOGS = ("plans", "blocks")
_META_TYPES: Mapping[str, type] = {
    "source": str, "policy": str, "layout": str, "slots_total": int, "streams": bool, "complete": bool, "closed": bool,
    "plans": bool, "token_times": bool, "config": dict, "settings": dict, "workload": dict, "software": dict,
    "skipped": dict, "load": dict,
}  # fmt: skip
_ROWS = ("prefill_tokens", "decode_tokens", "recomputed_tokens", *schema.PADDING_COLUMNS.values())
_NEEDED = ("source", "policy", "layout", "slots_total")
_MAY_BE_MISSING = {"scheduled_s", "first_token_s", "finished_s", "end_s"}
"""Times that are nan where the thing never happened."""
Array = npt.NDArray[Any]


def open_checked(path: str | Path) -> Trace:
    """Open a trace that somebody gave by its path; raises UserError, one sentence, for what could harm a page.

    Nothing but plain files of the folder itself is opened: no link leads out of it, no pipe holds the reader up.
    """
    folder = Path(path)
    if folder.is_dir():
        for name in FILES:
            _check_file(folder, name)
    trace = Trace.open(folder)
    check_sound(trace)
    return trace


def check_sound(trace: Trace) -> None:
    """Raise InputError, one sentence, unless a trace's tables are what the schema says and its figures can be.

    Every table is read once. Steps are numbered one by one, times are finite and go forward, codes are known, slots,
    steps and requests that a table speaks of are there. Whether the run obeys the laws of scheduling is another
    question (`traces.check`).
    """
    with _one_sentence(trace.path):
        _check_meta(trace)
        _Checker(trace).check()


def check_types(trace: Trace) -> None:
    """Raise InputError, one sentence, unless every column can be read and has the type that the schema says."""
    logs = _LOGS if trace.meta.get("plans") else ()
    with _one_sentence(trace.path):
        for table in map(schema.table_named, (*_TABLES, *logs)):
            for chunk in trace.chunks(table.name):
                _check_types(trace, table, chunk)


def _check_types(trace: Trace, table: Table, chunk: Columns) -> None:
    for name, values in chunk.items():
        if values.dtype != table.dtype[name]:  # a column with nulls becomes floats
            raise InputError(f"table {table.name}: {name} has values that are no {table.dtype[name]}", path=trace.path)


def _check_file(folder: Path, name: str) -> None:
    try:
        found = (folder / name).lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{name} is no plain file; expected the files of a step trace, no links", path=folder)
    if name == META and found.st_size > MOST_META_BYTES:
        raise InputError(f"{META} has {found.st_size:,} bytes; expected at most {MOST_META_BYTES:,}", path=folder)


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Whatever a reader stumbles over in a broken file is the file's fault."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        told = str(error).partition("\n")[0][:200]
        raise InputError(f"cannot be read as a step trace: {type(error).__name__}: {told}", path=path) from error


def _check_meta(trace: Trace) -> None:
    for name in _NEEDED:
        if name not in trace.meta:
            raise InputError(f"{META} holds no {name}; expected the description of a step trace", path=trace.path)
    for name, kind in _META_TYPES.items():
        value = trace.meta.get(name)
        if name in trace.meta and type(value) is not kind:  # as JSON makes them: true is no number
            raise InputError(f"{META}: {name} is {str(value)[:60]!r}; expected {_words(kind)}", path=trace.path)
    if trace.meta["source"] not in ("simulated", "measured"):
        raise InputError(f"{META}: source is {trace.meta['source'][:60]!r}; expected simulated or measured",
                         path=trace.path)  # fmt: skip
    if not 1 <= trace.meta["slots_total"] <= MOST_SLOTS:
        raise InputError(f"{META}: slots_total is out of range; expected 1 to {MOST_SLOTS:,}", path=trace.path)


def _words(kind: type) -> str:
    return {str: "a text", int: "a whole number", bool: "true or false", dict: "an object"}[kind]


class _Checker:
    """One pass over all tables of a trace, in pieces."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.slots = int(trace.meta["slots_total"])
        self.last_step = -1
        self.most_request = -1

    def check(self) -> None:
        """Raise InputError at the first thing that is wrong."""
        logs = _LOGS if self.trace.meta.get("plans") else ()
        for name in (*_TABLES, *logs):
            table = schema.table_named(name)
            self._check_rows(table)
            before: Columns | None = None
            for chunk in self.trace.chunks(name):
                if not len(chunk[table.names[0]]):
                    continue
                _check_types(self.trace, table, chunk)
                self._check_values(table, chunk, before)
                before = {column: values[-1:] for column, values in chunk.items()}
        self._check_names()

    def _check_rows(self, table: Table) -> None:
        """Before anything of it is read: how many rows it claims, and of which types."""
        file = self.trace.path / f"{table.name}.parquet"
        if not file.exists():
            recorded = schema.RECORDED[table.name]
            rows = (self.trace.path / f"{table.name}.rows").stat().st_size // recorded.dtype.itemsize
        else:
            rows = _parquet_rows(file, table, self.trace.path)
        if rows > MOST_ROWS:
            raise self._wrong(table, f"has {rows:,} rows; expected at most {MOST_ROWS:,}")

    def _check_values(self, table: Table, chunk: Columns, before: Columns | None) -> None:
        for name, values in chunk.items():
            if values.dtype.kind == "f":
                self._check_times(table, name, values)
            else:
                least, most = self._range(table, name)
                self._refuse(table, name, values, (values < least) | (values > most), f"expected {least} to {most:,}")
        if table is schema.STEPS:
            self._check_order(table, chunk, before)
            self._check_sum(table, chunk)
            self.last_step = int(chunk["step"][-1])
        if table is schema.REQUESTS:
            self._rising(table, "request", chunk, before, np.greater_equal, "expected each request once, in order")
            self.most_request = int(chunk["request"][-1])

    def _check_times(self, table: Table, name: str, values: Array) -> None:
        wrong = ~(np.abs(values) <= MOST_SECONDS)
        if name in _MAY_BE_MISSING:
            wrong &= ~np.isnan(values)
        self._refuse(table, name, values, wrong, "expected seconds")

    def _range(self, table: Table, name: str) -> tuple[int, int]:
        """Least and greatest value that a whole number may have."""
        if name in CODES:
            return 0, len(CODES[name]) - 1
        if name == "slot":
            return -1, self.slots - 1
        if table is schema.STEPS:
            return 0, {"slots_total": MOST_SLOTS}.get(name, 2**53)
        if name == "request" and table is not schema.REQUESTS:
            return -1, self.most_request + MOST_AHEAD
        if name in ("step", "first_step", "last_step"):
            return -1, self.last_step + MOST_AHEAD
        return 0, 2**53

    def _check_order(self, table: Table, chunk: Columns, before: Columns | None) -> None:
        self._rising(table, "step", chunk, before, lambda a, b: b != a + 1, "expected steps numbered one by one")
        for name in ("t_start_s", "t_end_s"):
            self._rising(table, name, chunk, before, np.greater, "expected times that never decrease")
        late = chunk["t_start_s"] > chunk["t_end_s"]
        self._refuse(table, "t_end_s", chunk["t_end_s"], late, "expected a time after the start of the step")

    def _check_sum(self, table: Table, chunk: Columns) -> None:
        """Useful and padded rows are all rows: figures rest on it."""
        told = sum((chunk[name].astype(np.int64) for name in _ROWS), np.zeros(len(chunk["step"]), dtype=np.int64))
        computed = chunk["computed_tokens"]
        self._refuse(table, "computed_tokens", computed, told != computed, "expected the sum of its parts")

    def _rising(
        self, table: Table, name: str, chunk: Columns, before: Columns | None, wrong: Any, expected: str
    ) -> None:
        """Refuse a column in which ``wrong(one, the next)`` holds somewhere."""
        values = chunk[name] if before is None else np.concatenate([before[name], chunk[name]])
        self._refuse(table, name, values[1:], wrong(values[:-1], values[1:]), expected)

    def _check_names(self) -> None:
        for request, name in self.trace.names().items():
            if not isinstance(request, int) or not isinstance(name, str) or len(name) > MOST_NAME:
                raise InputError(
                    f"a request's name is no text of at most {MOST_NAME:,} characters", path=self.trace.path
                )

    def _refuse(self, table: Table, name: str, values: Array, wrong: Array, expected: str) -> None:
        if wrong.any():
            raise self._wrong(table, f"{name} is {values[int(np.argmax(wrong))]}; {expected}")

    def _wrong(self, table: Table, sentence: str) -> InputError:
        return InputError(f"table {table.name}: {sentence}", path=self.trace.path)


def _parquet_rows(file: Path, table: Table, folder: Path) -> int:
    """Rows of a Parquet file whose columns have the schema's types; raises InputError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"table {table.name} is no whole Parquet file", path=folder) from error
    with found:
        for column in table.columns:
            place = found.schema_arrow.get_field_index(column.name)
            kind = found.schema_arrow.field(place).type if place >= 0 else None
            if kind != getattr(pa, column.type)():
                told = "is missing" if kind is None else f"is {kind}"
                raise InputError(f"table {table.name}: {column.name} {told}; expected {column.type}", path=folder)
        return int(found.metadata.num_rows)
