"""Row files to Parquet: what a finished trace is kept as."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import schema
from .atomic import atomic_path
from .schema import CODES, Table
from .spans import pair_spans
from .store import CHUNK_ROWS, NAMES, Columns, read_rows, row_chunks

if TYPE_CHECKING:
    import pyarrow as pa

_ENCODINGS = {"d": "BYTE_STREAM_SPLIT", "q": "DELTA_BINARY_PACKED", "i": "DELTA_BINARY_PACKED",
              "h": "DELTA_BINARY_PACKED"}  # fmt: skip
"""Type -> Parquet encoding: with these a steps table is written in half the time of dictionaries, and is smaller."""


def to_parquet(path: Path, last_step: int) -> None:
    """Turn every row file of a trace into a Parquet file (zstd); each goes only when its successor is in place.

    Args:
        path: the trace's folder; nobody may write to it any more.
        last_step: where spans that are still open end.
    """
    tables = {
        "steps": (schema.STEPS, _recorded(path, schema.STEPS)),
        "gaps": (schema.GAPS, _recorded(path, schema.GAPS)),
        "plans": (schema.PLANS, _recorded(path, schema.PLANS)),
        "blocks": (schema.BLOCKS, _recorded(path, schema.BLOCKS)),
        "spans": (schema.SPANS, _spans(path, last_step)),
        "requests": (schema.REQUESTS, _requests(path)),
    }
    for name, (table, chunks) in tables.items():
        _write(path / f"{name}.parquet", table, _arrow_schema(path, table), chunks)
        if name != "steps":
            (path / f"{name}.rows").unlink()
    (path / "tokens.rows").unlink()
    (path / NAMES).unlink()
    (path / "steps.rows").unlink()  # last: it carries the lock


def last_of_each_request(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Request rows by number, of each request the row written last."""
    order = np.argsort(rows["request"], kind="stable")
    request = rows["request"][order]
    last = np.ones(len(order), dtype=bool)
    last[:-1] = request[1:] != request[:-1]
    return rows[order[last]]


def read_names(path: Path) -> dict[int, str]:
    """Request number -> its name, for requests whose name is not their number; a torn last line is left out."""
    try:
        lines = (path / NAMES).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    records = (json.loads(line) for line in lines)
    return {record["request"]: record["name"] for record in records}


def token_runs(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each request's delivery times stand in ``tokens.rows``: requests, first row and number of rows."""
    requests = [rows["request"].astype(np.int64) for rows in row_chunks(path, schema.TOKENS)]
    request = np.concatenate(requests) if requests else np.empty(0, dtype=np.int64)
    first = np.flatnonzero(np.diff(request, prepend=-1))
    return request[first], first, np.diff(first, append=len(request))


def _recorded(path: Path, table: Table) -> Iterator[Columns]:
    for rows in row_chunks(path, table):
        yield {name: np.ascontiguousarray(rows[name]) for name in table.names}


def _spans(path: Path, last_step: int) -> Iterator[Columns]:
    spans = pair_spans(read_rows(path, schema.SPAN_EVENTS), last_step)
    for start in range(0, len(spans["request"]), CHUNK_ROWS):
        yield {name: column[start : start + CHUNK_ROWS] for name, column in spans.items()}


def _requests(path: Path) -> Iterator[dict[str, Any]]:
    rows = last_of_each_request(read_rows(path, schema.REQUESTS))
    names = read_names(path)
    times = _TokenTimes(path) if _has_tokens(path) else None
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS]
        columns: dict[str, Any] = {name: np.ascontiguousarray(chunk[name]) for name in schema.REQUESTS.names}
        if names:
            columns["name"] = [names.get(request) for request in chunk["request"].tolist()]
        if times is not None:
            columns["token_times_s"] = times.of(chunk["request"])
        yield columns


class _TokenTimes:
    """Delivery times by request, read in pieces."""

    def __init__(self, path: Path) -> None:
        self._rows = np.memmap(path / "tokens.rows", dtype=schema.TOKENS.dtype, mode="r")
        requests, first, count = token_runs(path)
        order = np.argsort(requests)
        self._requests, self._first, self._count = requests[order], first[order], count[order]

    def of(self, requests: npt.NDArray[np.int32]) -> pa.ListArray:
        """The delivery times of some requests, given in rising order."""
        import pyarrow as pa

        place = np.searchsorted(self._requests, requests)
        known = place < len(self._requests)
        known[known] = self._requests[place[known]] == requests[known]
        count = np.zeros(len(requests), dtype=np.int64)
        count[known] = self._count[place[known]]
        pieces = [self._rows["time_s"][self._first[p] : self._first[p] + self._count[p]] for p in place[known]]
        values = np.concatenate(pieces) if pieces else np.empty(0)
        return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(count)]).astype(np.int32), values)


def _has_tokens(path: Path) -> bool:
    return (path / "tokens.rows").stat().st_size >= schema.TOKENS.dtype.itemsize


def _arrow_schema(path: Path, table: Table) -> pa.Schema:
    import pyarrow as pa

    fields = [pa.field(column.name, getattr(pa, column.type)()) for column in table.columns]
    if table is schema.REQUESTS:
        if (path / NAMES).stat().st_size:
            fields.append(pa.field("name", pa.string()))
        if _has_tokens(path):
            fields.append(pa.field("token_times_s", pa.list_(pa.float64())))
    codes = {name: json.dumps(values) for name, values in CODES.items() if name in table.names}
    return pa.schema(fields, metadata={"schema_version": str(schema.SCHEMA_VERSION), **codes})


def _write(path: Path, table: Table, arrow_schema: pa.Schema, chunks: Iterator[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    encodings = {column.name: _ENCODINGS[column.code] for column in table.columns}
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(
            temporary,
            arrow_schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            column_encoding=encodings,
        ) as writer,
    ):
        for columns in chunks:
            writer.write_batch(pa.record_batch([columns[name] for name in arrow_schema.names], schema=arrow_schema))
