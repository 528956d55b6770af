"""`validation.json` in a simulated trace: how the run compares with the measured one that it forecasts.

What `simulator.validate` prints as JSON, with a version. It may come with an upload, so it is checked when it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.errors import InputError

from .atomic import atomic_path
from .store import VALIDATION

VERSION = 1
MOST_BYTES = 64 * 2**20
STATES = ("running", "waiting", "kv_percent")
_SIDES = ("measured", "simulated")


def write_validation(trace: str | Path, result: Mapping[str, Any]) -> None:
    """Put a comparison into a trace's folder, whole or not at all. Raises UserError where it cannot be written."""
    with atomic_path(Path(trace) / VALIDATION) as temporary:
        text = json.dumps({"version": VERSION, **result}, allow_nan=False, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def read_validation(trace: Path) -> dict[str, Any] | None:
    """The comparison in a trace's folder; None: there is none.

    Raises:
        InputError: it is none, of another version, or holds what a page could not show.
    """
    path = trace / VALIDATION
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"has more than {MOST_BYTES:,} bytes; expected a comparison", path=path)
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise InputError("is not whole JSON; expected what validate wrote", path=path) from error
    wrong = _wrong(found)
    if wrong:
        raise InputError(f"{wrong}; expected what validate wrote", path=path)
    return dict(found)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _wrong(found: Any) -> str:
    """What is wrong with a document, in words; empty where nothing is."""
    if not isinstance(found, dict) or found.get("version") != VERSION:
        return "is of another version"
    if not all(isinstance(found.get(name), str) for name in ("name", "measured_by", "reference")):
        return "does not say what was measured"
    if not isinstance(found.get("cost_model"), dict) or not isinstance(found["cost_model"].get("name"), str):
        return "names no cost model"
    if not all(_texts(found.get(name)) for name in ("notes", "not_recorded")):
        return "has notes that are no texts"
    if not isinstance(found.get("extrapolation"), dict | None):
        return "has an extrapolation that is none"
    for table in (found.get("run"), *_tables(found.get("latency"))):
        if not _figures(table):
            return "has figures that are none"
    return _wrong_series(found.get("series"))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _tables(latency: Any) -> list[Any]:
    return [table for table in latency.values() if table is not None] if isinstance(latency, dict) else [None]


def _figures(table: Any) -> bool:
    return isinstance(table, dict) and all(isinstance(entry, dict) and _entry(entry) for entry in table.values())


def _entry(entry: Mapping[str, Any]) -> bool:
    bounded = entry.get("measured") is None
    known = _is_number(entry.get("low")) and isinstance(entry.get("inside"), bool) if bounded else True
    optional = (entry.get(name) for name in ("measured", "error", "high"))
    return known and _is_number(entry.get("simulated")) and all(each is None or _is_number(each) for each in optional)


def _wrong_series(series: Any) -> str:
    if series is None:
        return ""
    if not isinstance(series, dict) or not _numbers(series.get("t_s")):
        return "has curves without times"
    count = len(series["t_s"])
    for side in _SIDES:
        curves = series.get(side)
        for name in STATES:
            curve: Any = curves.get(name) if isinstance(curves, dict) else ()
            if curve is None and side == "measured":
                continue  # not recorded
            if not _numbers(curve) or len(curve) != count:
                return f"has no curve of {name}, {side}"
    errors = series.get("rmse")
    if not isinstance(errors, dict) or not all(errors.get(n) is None or _is_number(errors[n]) for n in STATES):
        return "has curves without their error"
    return ""


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
