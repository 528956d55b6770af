"""What a page shows, as one value that stands in its address: a link reproduces the view."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from urllib.parse import urlencode

from .look import MOST_RUNS

Axis = Literal["time", "step"]
By = Literal["slots", "requests"]
MOST_KEY = 80
"""Characters of a run's key that are looked at; ours are shorter."""


@dataclass(frozen=True)
class View:
    """A part of some runs.

    Attributes:
        runs: keys of the runs, at most four.
        axis: whether x is time (seconds since the first arrival) or the step's number.
        start, end: the part of it in view, in its units; None: from the first, to the last.
        step: the step under the cursor; None: none.
        by: whether the timeline has a row per slot or per request.
    """

    runs: tuple[str, ...] = ()
    axis: Axis = "time"
    start: float | None = None
    end: float | None = None
    step: int | None = None
    by: By = "slots"

    @classmethod
    def of_query(cls, query: Mapping[str, Any]) -> View:
        """From an address's fields. What makes no sense there is left at its default: links get cut and mistyped."""
        keys = [key[:MOST_KEY] for key in str(query.get("run") or "").split(",") if key]
        start, end = _number(query.get("from")), _number(query.get("to"))
        if start is not None and end is not None and start >= end:
            start = end = None
        return cls(
            runs=tuple(dict.fromkeys(keys))[:MOST_RUNS],
            axis=cast(Axis, _one_of(query.get("x"), ("time", "step"))),
            start=start,
            end=end,
            step=_whole(query.get("step")),
            by=cast(By, _one_of(query.get("by"), ("slots", "requests"))),
        )

    def fields(self) -> dict[str, str]:
        """The fields of an address that differ from the defaults."""
        known = {
            "run": ",".join(self.runs) or None,
            "x": None if self.axis == "time" else self.axis,
            "from": None if self.start is None else f"{self.start:.9g}",
            "to": None if self.end is None else f"{self.end:.9g}",
            "step": None if self.step is None else str(self.step),
            "by": None if self.by == "slots" else self.by,
        }
        return {name: value for name, value in known.items() if value is not None}

    def query(self) -> str:
        """The same as text, with its question mark; empty when all is at its default."""
        fields = self.fields()
        return "?" + urlencode(fields, safe=",") if fields else ""

    def whole(self) -> View:
        """The same view, of the whole length of the runs."""
        return replace(self, start=None, end=None)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or not 0 <= number < 2**53 else int(number)


def _one_of(value: Any, names: tuple[str, ...]) -> str:
    return value if value in names else names[0]
