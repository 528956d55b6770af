"""Requests as rows of a table: filtered, sorted and cut to a page, as a grid asks for them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from traces.schema import FINISH_REASONS

from .requests import name_of, once, times_of
from .run import Run

MOST_ROWS = 500
"""Rows that are sent at once, whatever is asked for."""
MOST_TEXT = 200
"""Characters of a name that are sent; the whole name is in the CSV."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its title, what it is, and how it is shown."""

    title: str
    meaning: str
    seconds: bool = False
    text: bool = False


COLUMNS: dict[str, Column] = {
    "request": Column("#", "the request's number, in order of arrival"),
    "name": Column("Name", "what the request calls itself; its number where it has no name", text=True),
    "arrival": Column("Arrival, s", "seconds after the run's first arrival", seconds=True),
    "queue": Column("Queue, s", "first seat − arrival, seconds", seconds=True),
    "ttft": Column("TTFT, s", "first token − arrival, seconds", seconds=True),
    "tpot": Column("TPOT, s", "(last token − first) / (tokens − 1), seconds", seconds=True),
    "e2e": Column("E2E, s", "end − arrival, seconds; of requests that ended by themselves", seconds=True),
    "prompt": Column("Prompt", "tokens of the prompt"),
    "output": Column("Output", "tokens delivered"),
    "cached": Column("Cached", "prompt tokens found in the prefix cache at the first admission"),
    "preemptions": Column("Preempted", "how often it lost its seat"),
    "finish": Column("Finish", "why it ended; none: it had not ended when the trace did", text=True),
}


@dataclass(frozen=True)
class Page:
    """Some rows of the table.

    Attributes:
        rows: as JSON can hold them; null where a figure does not exist.
        matching: rows that pass the filters.
        said: how many those are of how many, in words.
    """

    rows: list[dict[str, Any]]
    matching: int
    said: str


def rows_of(run: Run) -> pd.DataFrame:
    """One row a request, with the columns of `COLUMNS`."""
    return once(run, "request rows", _rows)


def _rows(run: Run) -> pd.DataFrame:
    times, names = times_of(run), run.names()
    request = run.column("requests", "request")
    return pd.DataFrame(
        {
            "request": request,
            "name": [name_of(names, number, 1 << 20) for number in request.tolist()],
            "arrival": times.arrival_s - run.origin_s,
            "queue": times.queue_s,
            "ttft": times.ttft_s,
            "tpot": times.tpot_s,
            "e2e": times.e2e_s,
            "prompt": times.prompt_tokens,
            "output": times.output_tokens,
            "cached": run.column("requests", "cached_tokens"),
            "preemptions": run.column("requests", "preemptions"),
            "finish": np.asarray(FINISH_REASONS, dtype=object)[run.column("requests", "finish_reason")],
        }
    )


def page_of(run: Run, asked: Mapping[str, Any]) -> Page:
    """The rows that a grid asks for.

    Args:
        run: whose requests.
        asked: AG Grid's ``getRowsRequest``: ``startRow``, ``endRow``, ``filterModel``, ``sortModel``. What makes no
            sense there is left out: it comes from a browser.
    """
    frame = rows_of(run)
    found = _sorted(frame[_passing(frame, asked.get("filterModel"))], asked.get("sortModel"))
    start = min(max(0, _whole(asked.get("startRow"), 0)), len(found))
    end = min(max(start, _whole(asked.get("endRow"), start + MOST_ROWS)), start + MOST_ROWS)
    of = f"{len(frame):,} requests" if len(found) == len(frame) else f"{len(found):,} of {len(frame):,} requests"
    return Page(_as_json(found.iloc[start:end]), len(found), of)


def _as_json(frame: pd.DataFrame) -> list[dict[str, Any]]:
    shown = frame.assign(name=frame["name"].str.slice(0, MOST_TEXT))
    return [
        {str(name): None if value != value else value for name, value in row.items()}  # nan differs from itself
        for row in shown.to_dict("records")
    ]


def _sorted(frame: pd.DataFrame, model: Any) -> pd.DataFrame:
    told = {
        str(order.get("colId")): order.get("sort") != "desc" for order in _list(model) if isinstance(order, Mapping)
    }
    rising = {name: up for name, up in told.items() if name in COLUMNS}
    return frame.sort_values([*rising], ascending=[*rising.values()], kind="stable") if rising else frame


def _passing(frame: pd.DataFrame, model: Any) -> Any:
    """Which rows pass all filters, ``(rows,)``."""
    keep = np.ones(len(frame), dtype=np.bool_)
    for name, told in (model if isinstance(model, Mapping) else {}).items():
        if name in COLUMNS and isinstance(told, Mapping):
            keep &= _passes(frame[str(name)], told)
    return keep


def _passes(values: pd.Series[Any], told: Mapping[str, Any]) -> Any:
    """A column's filter: one condition, or some joined by AND or OR."""
    conditions = _list(told.get("conditions")) or [told]
    found = [_meets(values, condition) for condition in conditions if isinstance(condition, Mapping)]
    join = np.logical_or if told.get("operator") == "OR" else np.logical_and
    return join.reduce(found) if found else np.ones(len(values), dtype=np.bool_)


def _meets(values: pd.Series[Any], condition: Mapping[str, Any]) -> Any:
    kind = condition.get("type")
    if kind in ("blank", "notBlank"):
        return np.asarray(values.isna() if kind == "blank" else values.notna())
    if COLUMNS[str(values.name)].text:
        test = _TEXT.get(str(kind))
        wanted = str(condition.get("filter") or "")
        return np.asarray(test(values.str.lower(), wanted.lower())) if test else np.ones(len(values), dtype=np.bool_)
    return _compares(values, str(kind), _number(condition.get("filter")), _number(condition.get("filterTo")))


def _compares(values: pd.Series[Any], kind: str, low: float | None, high: float | None) -> Any:
    if kind == "inRange" and low is not None and high is not None:
        return np.asarray((values >= low) & (values <= high))
    compare = _NUMBER.get(kind)
    return np.ones(len(values), dtype=np.bool_) if compare is None or low is None else np.asarray(compare(values, low))


_NUMBER: dict[str, Callable[[Any, float], Any]] = {
    "equals": operator.eq,
    "notEqual": operator.ne,
    "greaterThan": operator.gt,
    "greaterThanOrEqual": operator.ge,
    "lessThan": operator.lt,
    "lessThanOrEqual": operator.le,
}
_TEXT: dict[str, Callable[[Any, str], Any]] = {
    "contains": lambda values, text: values.str.contains(text, regex=False),
    "notContains": lambda values, text: ~values.str.contains(text, regex=False),
    "equals": operator.eq,
    "notEqual": operator.ne,
    "startsWith": lambda values, text: values.str.startswith(text),
    "endsWith": lambda values, text: values.str.endswith(text),
}


def csv_of(frame: pd.DataFrame) -> str:
    """A frame as CSV; text that a spreadsheet would take for a formula gets an apostrophe in front.

    Which beginnings those are: https://owasp.org/www-community/attacks/CSV_Injection
    """
    texts = [name for name in frame.columns if frame[name].dtype == object or str(frame[name].dtype) == "str"]
    return str(frame.assign(**{name: frame[name].map(_as_text) for name in texts}).to_csv(index=False))


def _as_text(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > sys.float_info.max:
        return None
    return float(value)
