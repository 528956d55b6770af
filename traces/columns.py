"""Checked columns: the text or JSON values of a field become an array, and each bad value a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Values = Sequence[Any]

MOST = 2**31 - 1
"""Largest length accepted; what is above it is a mistake."""
_ZONE = re.compile(r"(?:Z|([+-])(\d\d):?(\d\d))$")


class Problems:
    """Bad rows of a chunk: row -> (reason to count by, sentence); the first problem of a row stays."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, str]] = {}

    def add(self, row: int, reason: str, sentence: str) -> None:
        """Record what is wrong with `row`."""
        self.rows.setdefault(row, (reason, sentence))


Converter = Callable[[Values, str, Problems], npt.NDArray[Any]]


def whole_numbers(least: int = 1) -> Converter:
    """A converter to ``(rows,)`` int64, each from `least` to `MOST`."""

    def convert(values: Values, field: str, problems: Problems) -> IntArray:
        numbers = _numbers(values)
        good = (numbers >= least) & (numbers <= MOST)
        good[good] = numbers[good] == np.floor(numbers[good])
        for row in np.flatnonzero(~good).tolist():
            what = f"{field} is {_shown(values[row])}"
            low = np.isfinite(numbers[row]) and numbers[row] < least
            reason = f"{field} below {least}" if low else f"{field} not a whole number"
            problems.add(row, reason, f"{what}; expected a whole number >= {least}")
        return np.where(good, numbers, least).astype(np.int64)

    return convert


def seconds(per_second: float = 1.0) -> Converter:
    """A converter to ``(rows,)`` float64 seconds since the start, from numbers in units of ``1 / per_second`` s."""

    def convert(values: Values, field: str, problems: Problems) -> FloatArray:
        numbers = _numbers(values)
        good = (numbers >= 0) & np.isfinite(numbers)
        for row in np.flatnonzero(~good).tolist():
            sentence = f"{field} is {_shown(values[row])}; expected a time, a number >= 0"
            problems.add(row, f"{field} not a time", sentence)
        return np.where(good, numbers, 0.0) / per_second

    return convert


def datetimes(values: Values, field: str, problems: Problems) -> IntArray:
    """Nanoseconds since 1970, ``(rows,)`` int64, from dates like ``2024-05-10 00:00:00.009930+00:00``."""
    try:
        times = np.array([_without_zone(value) for value in values], dtype="datetime64[ns]")
        shifts = np.array([_zone_shift_s(value) for value in values], dtype=np.int64)
        if not np.isnat(times).any():
            return times.astype(np.int64) - shifts * 1_000_000_000
    except (ValueError, TypeError):
        pass  # some value is no date: find out which
    return np.array([_one_datetime(row, value, field, problems) for row, value in enumerate(values)], dtype=np.int64)


def labels(values: Values, field: str, problems: Problems) -> npt.NDArray[Any]:
    """Names as given, ``(rows,)`` of objects; numbers stay numbers, text of digits becomes a number."""
    for row, value in enumerate(values):
        if value is None or value == "" or isinstance(value, (list, dict, float, bool)):
            problems.add(row, f"{field} missing", f"{field} is {_shown(value)}; expected a name or a whole number")
    return np.array([_label(value) for value in values], dtype=object)


def optional_labels(values: Values, field: str, problems: Problems) -> npt.NDArray[Any]:
    """Like `labels`, but a row may have none (-1)."""
    return np.array([-1 if value in (None, "", "-1") else _label(value) for value in values], dtype=object)


def id_lists(values: Values, field: str, problems: Problems) -> npt.NDArray[Any]:
    """Unit ids: ``(rows,)`` of int64 arrays, from JSON lists or text of numbers between spaces."""
    lists = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        lists[row] = _id_list(row, value, field, problems)
    return lists


def _id_list(row: int, value: object, field: str, problems: Problems) -> IntArray:
    items = value.split() if isinstance(value, str) else value
    if isinstance(items, list):
        try:
            ids = np.array(items if items else [], dtype=np.int64 if items else None)
            if ids.ndim == 1 and all(type(item) is not float for item in items):
                return ids.astype(np.int64)
        except (ValueError, TypeError, OverflowError):
            pass  # said below
    sentence = f"{field} is {_shown(value)}; expected a list of whole numbers below 2**63"
    problems.add(row, f"{field} not a list of whole numbers", sentence)
    return np.empty(0, dtype=np.int64)


def _numbers(values: Values) -> FloatArray:
    """Values as float64, NaN where one is no number."""
    try:
        return np.array(values, dtype=np.float64)
    except (ValueError, TypeError):
        return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, (str, int, float)) else float("nan")
    except (ValueError, OverflowError):
        return float("nan")


def _without_zone(value: str) -> str:
    match = _ZONE.search(value, 19)
    return (value if match is None else value[: match.start()]).strip()


def _zone_shift_s(value: str) -> int:
    match = _ZONE.search(value, 19)
    if match is None or match[1] is None:
        return 0
    shift = int(match[2]) * 3600 + int(match[3]) * 60
    return -shift if match[1] == "-" else shift


def _one_datetime(row: int, value: object, field: str, problems: Problems) -> int:
    try:
        if isinstance(value, str):
            time = np.datetime64(_without_zone(value), "ns")
            if not np.isnat(time):
                return int(time.astype(np.int64)) - _zone_shift_s(value) * 1_000_000_000
    except ValueError:
        pass  # said below
    sentence = f"{field} is {_shown(value)}; expected a date and time like 2023-11-16 18:15:46.68"
    problems.add(row, f"{field} not a date", sentence)
    return 0


def _label(value: object) -> object:
    if isinstance(value, str) and value.isascii() and value.isdigit() and (value == "0" or value[0] != "0"):
        return int(value) if len(value) < 19 else value
    return value


def _shown(value: object) -> str:
    if value is None or value == "":
        return "missing"
    text = value if isinstance(value, str) else str(value)
    return repr(text[:40]) if isinstance(value, str) else text[:40]
