"""The comparison that a run brings along, read once."""

from __future__ import annotations

from typing import Any

from dashboard.data.requests import once
from dashboard.data.run import Run
from scheduler.errors import InputError
from traces.validation import read_validation

Comparison = dict[str, Any]


def comparison_of(run: Run) -> Comparison | str | None:
    """What was compared; a sentence where it cannot be read; None of a run that was compared with nothing."""
    return None if run.trace is None else once(run, "comparison", _read)


def _read(run: Run) -> Comparison | str | None:
    assert run.trace is not None
    try:
        return read_validation(run.trace.path)
    except InputError as error:
        return str(error)
