"""Traces to calibrate from: simulated on a known line, so that what a fit must find is known."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simulator.run import simulate
from traces.workload import Workload

STEP_S, TOKEN_S, CONTEXT_S, LOGITS_S, HOST_S, HOST_REQUEST_S = 8e-3, 2e-5, 3e-8, 1e-4, 6e-4, 1e-5
LINE = (
    f"linear:step_s={STEP_S},token_s={TOKEN_S},context_s={CONTEXT_S},logits_s={LOGITS_S},host_s={HOST_S},"
    f"host_request_s={HOST_REQUEST_S}"
)


def mixed_workload(requests: int = 120, seed: int = 1) -> Workload:
    """Prompts of 2 to 400 tokens and outputs of 1 to 60, at a pace at which 1 to 32 run at a time."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(0.05, requests)).round(6)
    return Workload(arrival_s, rng.integers(2, 400, requests), rng.integers(1, 60, requests), name="mixed")


def recorded_run(folder: Path, name: str = "run", *, seed: int = 1, requests: int = 120, **settings: Any) -> Path:
    """A simulated run on disk."""
    path = folder / f"{name}.trace"
    settings = {"cost": LINE, "max_num_seqs": 32, "max_num_batched_tokens": 256, "num_blocks": 2000, **settings}
    simulate(mixed_workload(requests, seed), out=path, **settings)
    return path


def with_seconds(trace: Path, copy: Path, change: Any) -> Path:
    """A copy of a trace in which ``change(device_s)`` are the device seconds; times follow."""
    shutil.copytree(trace, copy)
    steps = pd.read_parquet(copy / "steps.parquet")
    before_s = steps["device_s"].to_numpy().copy()
    steps["device_s"] = change(before_s.copy())
    later = np.cumsum(steps["device_s"].to_numpy() - before_s)
    steps["t_end_s"] += later
    steps["t_start_s"] += np.append(0.0, later[:-1])
    steps.to_parquet(copy / "steps.parquet", compression="zstd", index=False)
    return copy
