"""The cost model of `fidelity.py`: the engine's profile and a few recorded runs, fitted."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from fidelity_runs import SYSTEM, Case, Machine, median, record

from backend.profile import profile
from simulator.calibrate import calibrate, write_cost
from traces.probes import probes_of
from traces.trace import Trace

COST, TRACES = "cost.json", "calibration"
RANGE = {"max_num_seqs": 32, "max_num_batched_tokens": 1024}
"""The grid reaches at least as far as any case."""


def calibrated(folder: Path, machine: Machine, cases: Iterable[Case]) -> tuple[Path, float]:
    """The cost file, and the probe's median seconds while it was made; those in `folder` if they are there."""
    cost, traces = folder / COST, folder / TRACES
    if not cost.exists():
        shutil.rmtree(traces, ignore_errors=True)
        traces.mkdir()
        profile(machine.model, out=traces / "grid", **machine.options, **SYSTEM, **RANGE)
        for number, case in enumerate(cases):
            record(case, machine, traces / f"run-{number}.trace")
        write_cost(calibrate(sorted(traces.rglob("*.trace"))), cost)
    return cost, median(probes_of(Trace.open(traces / "grid" / "ragged.trace"))[1].tolist())
