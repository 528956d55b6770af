"""A measured trace of our own engine as a run to simulate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler.errors import ConfigError, InputError
from traces.formats import read_workload
from traces.metrics import weighted_spread
from traces.probes import probes_of
from traces.store import WORKLOAD
from traces.trace import Trace

from .measured import MeasuredRun, RunTimes, series_of, trace_times

SAMPLES = 200
"""Of its state over time."""


def read_trace(trace: Trace) -> MeasuredRun:
    """The run in a trace; raises InputError or ConfigError where it cannot be simulated."""
    source = trace.meta.get("source")
    if source != "measured":
        found = "is a simulated run" if source == "simulated" else "holds no requests.jsonl and is no run of ours"
        raise InputError(f"{found}; expected a measured run", path=trace.path)
    path = trace.path / WORKLOAD
    if not path.exists():
        raise InputError(f"holds no {WORKLOAD}; expected a measured run that kept its workload", path=trace.path)
    workload, times = read_workload(path), trace_times(trace, planned=False)
    if len(times.arrival) != len(workload):
        raise ConfigError(f"{trace.path} has {len(times.arrival)} requests, its workload {len(workload)}")
    zero_s = float(trace.column("requests", "arrival_s").min())
    gaps, (_, probes) = trace.columns("gaps", ["gap_s", "count"]), probes_of(trace)
    every = np.linspace(0.0, float(np.nanmax(times.last)), SAMPLES + 1)[1:]
    return MeasuredRun(
        path=trace.path,
        name=str(trace.meta.get("model", trace.path.name)),
        workload=replace(workload, arrival_s=times.arrival),
        settings=_settings(trace.meta),
        model=str(trace.meta.get("model", "")),
        hardware=trace.meta.get("hardware"),
        tensor_parallel=1,
        times=times,
        itl_s=weighted_spread(gaps["gap_s"], gaps["count"]),
        series=series_of(trace, every, zero_s),
        cost=None,
        planned=False,
        by="batchscope",
        probe_s=float(probes.mean()) if len(probes) else None,
        **_load(trace.meta, times),
    )


def _settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(meta["config"])
    config["cudagraph_capture_sizes"] = tuple(config["cudagraph_capture_sizes"])
    config["eos_token_ids"] = ()  # ends come from the recorded lengths
    return config


def _load(meta: Mapping[str, Any], times: RunTimes) -> dict[str, Any]:
    """Clients that waited are simulated as such; where some of them gave up too, their recorded times are kept."""
    load = meta.get("load") or {}
    clients = load.get("concurrency")
    gone = np.flatnonzero(times.cut)
    if not len(gone):
        return {"clients": clients, "think_s": float(load.get("think_s") or 0.0)}
    notes = [f"{len(gone):,} requests were given up; they are given up at the same moments when simulated"]
    if clients is not None:
        notes.append(
            f"its {clients} clients waited for their answers, and some gave up: both together are not simulated, "
            "requests come when they were recorded"
        )
    aborts = tuple(zip(times.last[gone].tolist(), gone.tolist(), strict=True))
    return {"aborts": aborts, "notes": tuple(notes)}
