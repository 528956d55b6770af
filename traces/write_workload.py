"""Writing a workload as our CSV or JSON lines: every column, nothing lost, the file whole or not there at all."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from scheduler.errors import ConfigError

from .console import atomic_path
from .workload import Workload

_ROWS = 65_536
"""Rows turned into Python values at a time."""
_COLUMNS = {
    "arrival_s": "arrival_s",
    "prompt_tokens": "prompt_tokens",
    "output_tokens": "output_tokens",
    "max_tokens": "max_tokens",
    "priority": "priority",
    "request_ids": "request_id",
    "session": "session",
    "turn": "turn",
}


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write `workload` to `path`, replacing what is there; the name's end chooses ``.csv`` or ``.jsonl``.

    Reading it back gives the same digest.

    Raises:
        ConfigError: another ending.
        UserError: the file cannot be written or the disk is full; then `path` is as it was.
    """
    write = writer_for(path)
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        write(workload, file)


def writer_for(path: str | Path) -> Callable[[Workload, TextIO], None]:
    """The writer for a file name; raises ConfigError for an ending that has none."""
    writers = {".csv": _write_csv, ".jsonl": _write_jsonl}
    suffix = Path(path).suffix.lower()
    if suffix not in writers:
        raise ConfigError(f"{path} ends in {suffix or 'nothing'}; expected a name that ends in .csv or .jsonl")
    return writers[suffix]


def _write_csv(workload: Workload, file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    for number, record in enumerate(_records(workload)):
        if number == 0:
            writer.writerow(record)
        if "hash_ids" in record:
            record["hash_ids"] = " ".join(map(str, record["hash_ids"]))
        writer.writerow(record.values())


def _write_jsonl(workload: Workload, file: TextIO) -> None:
    for record in _records(workload):
        file.write(json.dumps(record, separators=(",", ":")) + "\n")


def _records(workload: Workload) -> Iterator[dict[str, Any]]:
    """Each request as field -> Python value, the fields in the same order; the unit of ``hash_ids`` in every row, so
    that any part of the file can be read alone.
    """
    columns = {theirs: getattr(workload, ours) for ours, theirs in _COLUMNS.items()}
    columns = {name: column for name, column in columns.items() if column is not None}
    for start in range(0, len(workload), _ROWS):
        parts = [column[start : start + _ROWS].tolist() for column in columns.values()]
        for row, values in enumerate(zip(*parts, strict=True), start):
            yield {**dict(zip(columns, values, strict=True)), **_hash_fields(workload, row)}


def _hash_fields(workload: Workload, row: int) -> dict[str, Any]:
    if workload.hash_ids is None or workload.hash_offsets is None:
        return {}
    ids = workload.hash_ids[workload.hash_offsets[row] : workload.hash_offsets[row + 1]].tolist()
    return {"hash_ids": ids, "hash_block": workload.hash_block, "hash_covers": workload.hash_covers}
