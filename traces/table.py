"""Building a workload from the rows of a file, with every check that a row or the whole file can fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError

from .columns import Converter, Problems, id_lists, labels, optional_labels, whole_numbers
from .hashing import ForcedBlock, find_hash_rule
from .workload import IntArray, Workload, load_name

_CONVERTERS: dict[str, Converter] = {
    "prompt_tokens": whole_numbers(),
    "output_tokens": whole_numbers(),
    "max_tokens": whole_numbers(),
    "priority": whole_numbers(least=-(2**31)),
    "request_id": labels,
    "session": optional_labels,
    "turn": whole_numbers(least=0),
    "hash_ids": id_lists,
    "hash_block": whole_numbers(),
    "hash_covers": labels,
}


@dataclass
class Chunk:
    """Rows as parsed: their lines, the fields' values, and rows broken beyond that as (line, reason, sentence)."""

    lines: list[int]
    values: dict[str, Sequence[Any]]
    broken: list[tuple[int, str, str]]


class Table:
    """Collects the chunks of a file as checked columns.

    Args:
        path: the file, as the user named it.
        fields: our column -> the field's name in the file.
        time: converts the arrival field.
        absolute: times are nanoseconds of a calendar; the first arrival becomes second 0.
        skip_bad: leave bad rows out and count them by reason.
    """

    def __init__(
        self, path: str | Path, fields: Mapping[str, str], time: Converter, *, absolute: bool, skip_bad: bool
    ) -> None:
        self._path, self._skip_bad = path, skip_bad
        self._fields, self._absolute = fields, absolute
        self._converters: dict[str, Converter] = {**_CONVERTERS, "arrival_s": time}
        self._lines: list[IntArray] = []
        self._parts: dict[str, list[npt.NDArray[Any]]] = {ours: [] for ours in fields}
        self._skipped: Counter[str] = Counter()

    def add(self, chunk: Chunk) -> None:
        """Convert a chunk; raise for its first bad row, or leave the bad rows out."""
        problems = Problems()
        arrays = {
            ours: self._converters[ours](values, self._fields[ours], problems) for ours, values in chunk.values.items()
        }
        if "max_tokens" in arrays:
            self._check_limits(arrays, problems)
        bad = chunk.broken + [(chunk.lines[row], *said) for row, said in problems.rows.items()]
        if bad and not self._skip_bad:
            line, _, sentence = min(bad)
            raise InputError(f"{sentence} (--skip-bad leaves such rows out)", path=self._path, line=line)
        self._skipped.update(reason for _, reason, _ in bad)
        keep = np.ones(len(chunk.lines), dtype=bool)
        keep[list(problems.rows)] = False
        self._lines.append(np.array(chunk.lines, dtype=np.int64)[keep])
        for ours, array in arrays.items():
            self._parts[ours].append(array[keep])

    def _check_limits(self, arrays: Mapping[str, npt.NDArray[Any]], problems: Problems) -> None:
        for row in np.flatnonzero(arrays["max_tokens"] < arrays["output_tokens"]):
            limit, output = arrays["max_tokens"][row], arrays["output_tokens"][row]
            sentence = f"{self._fields['max_tokens']} is {limit}; expected at least the {output} output tokens"
            problems.add(int(row), "max_tokens below output_tokens", sentence)

    def finish(self, *, sort: bool, hash_block: int | None) -> Workload:
        """The workload of all chunks; raises InputError for what only the whole file shows."""
        lines = np.concatenate(self._lines) if self._lines else np.empty(0, dtype=np.int64)
        if not len(lines):
            left_out = f" ({sum(self._skipped.values())} bad ones left out)" if self._skipped else ""
            raise InputError(f"has no requests{left_out}", path=self._path)
        columns = {ours: np.concatenate(parts) for ours, parts in self._parts.items()}
        times = columns["arrival_s"]
        if self._absolute:
            times = (times - times.min()) / 1e9
        order = self._order(times, lines, sort)
        columns = {ours: column[order] for ours, column in columns.items()}
        columns["arrival_s"] = times[order]
        hashes = self._hashes(columns, lines[order], hash_block)
        return Workload(
            columns["arrival_s"],
            columns["prompt_tokens"],
            columns["output_tokens"],
            max_tokens=columns.get("max_tokens"),
            priority=columns.get("priority"),
            request_ids=self._request_ids(columns, lines[order]),
            session=_numbered(columns["session"]) if "session" in columns else None,
            turn=columns.get("turn"),
            name=load_name(self._path),
            skipped=dict(self._skipped),
            **hashes,
        )

    def _order(self, times: npt.NDArray[np.float64], lines: IntArray, sort: bool) -> npt.NDArray[np.intp]:
        """Row order by time; equal times keep the order of the file."""
        steps = np.diff(times)
        if not sort and np.any(steps < 0):
            row = int(np.argmax(steps < 0))
            sentence = (
                f"{self._fields['arrival_s']} goes back by {-steps[row]:.9g} s; expected times that never decrease"
            )
            raise InputError(f"{sentence} (--sort puts them in order)", path=self._path, line=int(lines[row + 1]))
        return np.argsort(times, kind="stable")

    def _request_ids(self, columns: Mapping[str, npt.NDArray[Any]], lines: IntArray) -> npt.NDArray[Any] | None:
        if "request_id" not in columns:
            return None
        seen: dict[object, int] = {}
        for name, line in zip(columns["request_id"], lines, strict=True):
            if name in seen:
                sentence = f"request_id {name!r} is also on line {min(seen[name], line)}; expected each id once"
                raise InputError(sentence, path=self._path, line=int(max(seen[name], line)))
            seen[name] = int(line)
        return _names(columns["request_id"])

    def _hashes(
        self, columns: Mapping[str, npt.NDArray[Any]], lines: IntArray, hash_block: int | None
    ) -> dict[str, Any]:
        if "hash_ids" not in columns:
            if hash_block is not None:
                raise InputError("has no hash_ids, so a hash block makes no sense here", path=self._path)
            return {}
        lists = columns["hash_ids"]
        counts = np.array([len(ids) for ids in lists], dtype=np.int64)
        forced = self._stated_block(columns, lines) or (None if hash_block is None else ForcedBlock(hash_block, None))
        if forced is not None and hash_block not in (None, forced.block):
            raise InputError(f"states a hash_block of {forced.block}, not {hash_block}", path=self._path)
        rule = find_hash_rule(
            columns["prompt_tokens"], columns["output_tokens"], counts, lines, forced=forced, path=self._path
        )
        return {
            "hash_ids": np.concatenate(lists) if counts.sum() else np.empty(0, dtype=np.int64),
            "hash_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            "hash_block": rule.block,
            "hash_covers": rule.covers,
        }

    def _stated_block(self, columns: Mapping[str, npt.NDArray[Any]], lines: IntArray) -> ForcedBlock | None:
        """Our own files say the unit in every row, the same in all."""
        if "hash_block" not in columns or "hash_covers" not in columns:
            return None
        for name in ("hash_block", "hash_covers"):
            other = np.flatnonzero(columns[name] != columns[name][0])
            if len(other):
                sentence = f"{name} is {columns[name][other[0]]}; expected {columns[name][0]} as in the other rows"
                raise InputError(sentence, path=self._path, line=int(lines[other[0]]))
        covers = columns["hash_covers"][0]
        if covers not in ("prompt", "sequence"):
            raise InputError(f"hash_covers is {covers!r}; expected prompt or sequence", path=self._path, line=1)
        return ForcedBlock(int(columns["hash_block"][0]), covers)


def _numbered(names: npt.NDArray[Any]) -> IntArray:
    """Sessions as numbers: as given if they all are, else counted in order of first appearance (-1: none)."""
    if all(isinstance(name, int) for name in names):
        return names.astype(np.int64)
    numbers: dict[object, int] = {}
    return np.array([-1 if name == -1 else numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _names(names: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Request ids as numbers if they all are, else as text."""
    if all(isinstance(name, int) for name in names):
        return names.astype(np.int64)
    return np.array([str(name) for name in names])
