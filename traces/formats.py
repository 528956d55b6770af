"""Reading workloads: every known format, found by the content of the file, never by its name."""

from __future__ import annotations

import csv
import difflib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from scheduler.errors import ConfigError, InputError

from .columns import Converter, datetimes, seconds
from .result_files import is_result, read_result
from .table import Chunk, Table
from .workload import Workload, cut

CHUNK = 65_536
"""Rows converted at a time: bounds the memory that the text of a file takes."""
_MAGIC = {
    b"\x1f\x8b": "gzip-compressed; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"BZh": "bzip2-compressed; unpack it first",
    b"\xfd7zXZ": "xz-compressed; unpack it first",
    b"\x28\xb5\x2f\xfd": "zstd-compressed; unpack it first",
    b"PAR1": "a Parquet file; export it as CSV first",
}


@dataclass(frozen=True)
class Format:
    """A file format: the fields it must have, those it may have, and what time means in it.

    Attributes:
        required, optional: our column -> the field's name in the file.
        time: converts the arrival field.
        absolute: times are dates, so the first arrival is second 0; else times are kept as given.
        marker: a further field that must be there (tells two similar formats apart).
    """

    name: str
    kind: str
    required: Mapping[str, str]
    time: Converter
    optional: Mapping[str, str] = field(default_factory=dict)
    absolute: bool = False
    marker: str | None = None

    def fields(self) -> list[str]:
        """Names that the file must have."""
        return [*self.required.values(), *([self.marker] if self.marker else [])]

    def present(self, names: Sequence[str]) -> dict[str, str]:
        """Our column -> field, of those to read from a file with these field names."""
        return {**self.required, **{ours: theirs for ours, theirs in self.optional.items() if theirs in names}}


def _lengths(arrival: str, prompt: str, output: str) -> dict[str, str]:
    return {"arrival_s": arrival, "prompt_tokens": prompt, "output_tokens": output}


_OWN = {
    name: name
    for name in ("max_tokens", "priority", "request_id", "session", "turn", "hash_ids", "hash_block", "hash_covers")
}
_MOONCAKE = _lengths("timestamp", "input_length", "output_length")
FORMATS = (
    Format("batchscope", "csv", _lengths("arrival_s", "prompt_tokens", "output_tokens"), seconds(), _OWN),
    Format("azure", "csv", _lengths("TIMESTAMP", "ContextTokens", "GeneratedTokens"), datetimes, absolute=True),
    Format("vidur", "csv", _lengths("arrived_at", "num_prefill_tokens", "num_decode_tokens"), seconds()),
    Format("llmservingsim", "csv", _lengths("arrival_time_ns", "input_toks", "output_toks"), seconds(1e9)),
    Format(
        "burstgpt",
        "csv",
        _lengths("Timestamp", "Request tokens", "Response tokens"),
        seconds(),
        {"session": "Session ID"},
    ),
    Format("batchscope", "jsonl", _lengths("arrival_s", "prompt_tokens", "output_tokens"), seconds(), _OWN),
    # Qwen-Bailian usage traces: Mooncake's fields, but seconds
    Format("bailian", "jsonl", _MOONCAKE, seconds(), {"hash_ids": "hash_ids"}, marker="chat_id"),
    Format("mooncake", "jsonl", _MOONCAKE, seconds(1e3), {"hash_ids": "hash_ids"}),
)
"""Tried in this order; a ServeGen folder is known by its files."""


def read_workload(
    path: str | Path,
    *,
    sort: bool = False,
    skip_bad: bool = False,
    hash_block: int | None = None,
    seed: int = 0,
    span_s: tuple[float, float] | None = None,
) -> Workload:
    """Read the workload in the file (or ServeGen folder) `path`, whatever its format.

    The result of a load generator (`traces.result_files`) is the workload that it sent.

    Args:
        path: the file.
        sort: put requests in order of arrival; without it, times that decrease are an error.
        skip_bad: leave rows out that cannot be read, counted by reason in `Workload.skipped`.
        hash_block: tokens that a unit of ``hash_ids`` stands for, when the content does not tell.
        seed: for formats that describe a random process (ServeGen).
        span_s: only arrivals in ``[start, end)`` seconds; `start` becomes 0.

    Raises:
        InputError: the file cannot be read as a workload; names file, line, field and what was expected.
    """
    if span_s is not None and not 0 <= span_s[0] < span_s[1]:
        raise ConfigError(f"the span is {span_s[0]} to {span_s[1]} s; expected 0 <= start < end")
    if _is_folder(path):
        from .servegen import read_servegen

        return read_servegen(Path(path), seed=seed, span_s=span_s)
    _check_magic(path)
    if is_result(path):
        workload = read_result(path).workload()
        return workload if span_s is None else cut(workload, span_s)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            workload = _read_text(file, path, sort=sort, skip_bad=skip_bad, hash_block=hash_block)
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text; expected a CSV or JSON-lines workload", path=path) from error
    return workload if span_s is None else cut(workload, span_s)


def _is_folder(path: str | Path) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise InputError("is no file; expected a CSV or JSON-lines workload", path=path)
    if stat.S_ISFIFO(mode):
        raise InputError("is a pipe; expected a file, which can be read twice", path=path)
    return stat.S_ISDIR(mode)


def _check_magic(path: str | Path) -> None:
    """Refuse what is no text, by its first bytes."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            raise InputError(f"is {what}", path=path)
    if b"\0" in head:
        raise InputError("is binary data; expected a CSV or JSON-lines workload", path=path)
    if not head.strip():
        raise InputError("is empty; expected a CSV header or a JSON object on the first line", path=path)


def _read_text(file: TextIO, path: str | Path, *, sort: bool, skip_bad: bool, hash_block: int | None) -> Workload:
    source = _open_source(file, path)
    form = source.format
    table = Table(path, source.columns, form.time, absolute=form.absolute, skip_bad=skip_bad)
    for chunk in source.chunks:
        table.add(chunk)
    return table.finish(sort=sort, hash_block=hash_block)


@dataclass
class _Source:
    format: Format
    columns: dict[str, str]
    chunks: Iterator[Chunk]


def _open_source(file: TextIO, path: str | Path) -> _Source:
    line_no, first = 1, file.readline()
    while first and not first.strip():
        line_no, first = line_no + 1, file.readline()
    if first.lstrip().startswith("{"):
        return _open_jsonl(file, first, line_no, path)
    if first.lstrip().startswith("["):
        raise InputError("is a JSON array; expected one JSON object a line", path=path, line=line_no)
    return _open_csv(file, first, line_no, path)


def _open_csv(file: TextIO, first: str, line_no: int, path: str | Path) -> _Source:
    header = [name.strip() for name in next(csv.reader([first]))]
    form = _detect("csv", header, path, line_no)
    columns = form.present(header)
    places = {ours: header.index(theirs) for ours, theirs in columns.items()}
    return _Source(form, columns, _csv_chunks(file, places, len(header), line_no, path))


def _csv_chunks(file: TextIO, places: Mapping[str, int], width: int, line_no: int, path: str | Path) -> Iterator[Chunk]:
    reader = csv.reader(file)
    start = line_no + 1
    while True:
        try:
            rows = list(islice(reader, CHUNK))
        except csv.Error as error:
            raise InputError(f"is not CSV: {error}", path=path, line=line_no + reader.line_num) from error
        if not rows:
            return
        lines = list(range(start, start + len(rows)))
        start += len(rows)
        broken = [_wrong_width(lines[i], row, width) for i, row in enumerate(rows) if len(row) not in (0, width)]
        if any(len(row) != width for row in rows):  # blank lines too
            lines = [line for line, row in zip(lines, rows, strict=True) if len(row) == width]
            rows = [row for row in rows if len(row) == width]
        table = list(zip(*rows, strict=True)) or [()] * width
        yield Chunk(lines, {ours: table[place] for ours, place in places.items()}, broken)


def _wrong_width(line: int, row: list[str], width: int) -> tuple[int, str, str]:
    hint = " (is the line cut off?)" if len(row) < width else ""
    return line, "wrong number of fields", f"has {len(row)} fields; expected {width}{hint}"


def _open_jsonl(file: TextIO, first: str, line_no: int, path: str | Path) -> _Source:
    try:
        names = list(json.loads(first))
    except ValueError as error:
        raise InputError(_not_json(error), path=path, line=line_no) from error
    form = _detect("jsonl", names, path, line_no)
    columns = form.present(names)
    return _Source(form, columns, _jsonl_chunks(file, first, line_no, columns))


def _jsonl_chunks(file: TextIO, first: str, line_no: int, columns: Mapping[str, str]) -> Iterator[Chunk]:
    texts, start = [first, *islice(file, CHUNK - 1)], line_no
    while texts:
        yield _jsonl_chunk(texts, start, columns)
        start += len(texts)
        texts = list(islice(file, CHUNK))


def _jsonl_chunk(texts: Sequence[str], start: int, columns: Mapping[str, str]) -> Chunk:
    lines, records, broken = [], [], []
    for line, text in enumerate(texts, start):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except ValueError as error:
            broken.append((line, "not a JSON object", _not_json(error)))
            continue
        if not isinstance(record, dict):
            broken.append((line, "not a JSON object", "is not a JSON object"))
            continue
        lines.append(line)
        records.append(record)
    values: dict[str, Sequence[Any]] = {
        ours: [record.get(theirs) for record in records] for ours, theirs in columns.items()
    }
    return Chunk(lines, values, broken)


def _not_json(error: ValueError) -> str:
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return f"is not a whole JSON object (is the line cut off?): {reason}"


def _detect(kind: str, names: Sequence[str], path: str | Path, line_no: int) -> Format:
    """The first format of this `kind` whose fields are all among `names`."""
    known = [form for form in FORMATS if form.kind == kind]
    for form in known:
        if set(form.fields()) <= set(names):
            return form
    if kind == "csv" and _all_numbers(names):
        hint = " (a single ServeGen window file? give its folder)" if len(names) == 6 else ""
        raise InputError(f"has numbers where the column names should be; {_expected(known)}{hint}", path=path, line=1)
    nearest = min(known, key=lambda form: len(set(form.fields()) - set(names)) / len(form.fields()))
    missing = [name for name in nearest.fields() if name not in names]
    if len(missing) == len(nearest.fields()):
        shown = ", ".join(names)[:80]
        raise InputError(f"fields '{shown}' fit no known format; {_expected(known)}", path=path, line=line_no)
    close = difflib.get_close_matches(missing[0], set(names) - set(nearest.fields()), n=1)
    hint = f" (there is {close[0]!r})" if close else ""
    sentence = f"misses {', '.join(missing)} of the {nearest.name} format{hint}; {_expected(known)}"
    raise InputError(sentence, path=path, line=line_no)


def _all_numbers(names: Sequence[str]) -> bool:
    return all(name.replace(".", "").replace("-", "").isdigit() for name in names[:3])


def _expected(known: Sequence[Format]) -> str:
    return "expected one of " + "; ".join(f"{form.name}: {','.join(form.fields())}" for form in known)
