"""The cost model of `fidelity.py`: the engine's profile and a few recorded runs, fitted."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from fidelity_runs import SYSTEM, Case, Machine, record

from backend.probe import Probe
from backend.profile import profile
from simulator.calibrate import calibrate, write_cost
from simulator.costs.fitted_file import read_cost_file

COST, TRACES = "cost.json", "calibration"
RANGE = {"max_num_seqs": 32, "max_num_batched_tokens": 1024}
"""The grid reaches at least as far as any case."""


def calibrated(folder: Path, machine: Machine, meter: Probe, cases: Iterable[Case]) -> tuple[Path, float]:
    """The cost file, and the probe's mean seconds while it was made; that in `folder` if it is there."""
    cost = folder / COST
    if not cost.exists():
        traces = folder / TRACES
        shutil.rmtree(traces, ignore_errors=True)
        traces.mkdir()
        profile(machine.model, out=traces / "grid", **machine.options, **SYSTEM, **RANGE)
        for number, case in enumerate(cases):
            record(case, machine, meter, traces / f"run-{number}.trace")
        write_cost(calibrate(sorted(traces.rglob("*.trace"))), cost)
    probe_s = read_cost_file(cost).probe_s
    assert probe_s is not None, "all of these traces were recorded with a probe"
    return cost, probe_s
