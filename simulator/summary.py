"""One simulated run, summed up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from traces.record import record_of
from traces.workload import Workload

from .load import Load
from .run import run
from .setup import System


def run_record(
    system: System, workload: Workload, load: Load, *, slo: Mapping[str, float] | None = None, **options: Any
) -> dict[str, Any]:
    """Run once and sum up; `wall_s` is how long that took on this machine. `slo` as for `Trace.summary`; other options
    are those of `run`.
    """
    start = time.perf_counter()
    trace = run(system, workload, load, **options)
    return record_of(trace, wall_s=time.perf_counter() - start, slo=None if slo is None else dict(slo))
