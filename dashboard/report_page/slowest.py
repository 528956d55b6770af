"""The slowest requests of a run, as cells of a table."""

from __future__ import annotations

import numpy as np

from dashboard.data.requests import name_of, times_of
from dashboard.data.run import Run
from dashboard.numbers import seconds
from traces.schema import FINISH_REASONS

MOST_SLOWEST = 20
HEADS = (
    "Request", "Arrival", "Queue", "TTFT", "TPOT", "E2E", "Prompt tokens", "Output tokens", "Cached tokens",
    "Preemptions", "Ended by",
)  # fmt: skip
"""Arrival is counted from the run's first."""


def slowest(run: Run, most: int = MOST_SLOWEST) -> list[list[str]]:
    """Of requests that ended by themselves those with the largest E2E, slowest first: texts in the order of `HEADS`."""
    times = times_of(run)
    known = np.flatnonzero(~np.isnan(times.e2e_s))
    rows = known[np.argsort(-times.e2e_s[known], kind="stable")][:most]
    names = run.names()
    columns = {
        name: run.column("requests", name) for name in ("request", "cached_tokens", "preemptions", "finish_reason")
    }
    origin = run.origin_s
    return [
        [
            name_of(names, int(columns["request"][row])),
            *(seconds(float(value)) for value in (times.arrival_s[row] - origin, times.queue_s[row], times.ttft_s[row],
                                                  times.tpot_s[row], times.e2e_s[row])),
            *(f"{int(value):,}" for value in (times.prompt_tokens[row], times.output_tokens[row],
                                             columns["cached_tokens"][row], columns["preemptions"][row])),
            FINISH_REASONS[columns["finish_reason"][row]],
        ]
        for row in rows.tolist()
    ]  # fmt: skip
