"""Any step of a plan log can be rebuilt, from wherever one comes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import simulate
from traces.replay import PlanReplay
from traces.samples import sample_names, sample_path
from traces.trace import Trace
from traces.workload import Workload

SETTINGS: list[dict[str, Any]] = [
    {}, {"async_scheduling": True}, {"policy": "static", "num_blocks": 400}, {"policy": "orca", "num_blocks": 40},
    {"async_scheduling": True, "num_blocks": 30}, {"policy": "prefill-first", "num_blocks": 35},
]  # fmt: skip


def replay_of(trace: Trace) -> PlanReplay:
    return PlanReplay(trace.column("steps", "step"), trace.columns("plans"), trace.columns("blocks"))


def check_jumps(trace: Trace, seed: int = 0) -> None:
    """Step by step from the start is the reference: it skips nothing. All jumps must agree with it."""
    steps, draw = trace.column("steps", "step").tolist(), random.Random(seed)
    forward = replay_of(trace)
    truth = {step: (forward.plan_at(step), forward.block_table_at(step)) for step in steps}
    jumping = replay_of(trace)
    for step in [draw.choice(steps) for _ in range(400)]:
        assert (jumping.plan_at(step), jumping.block_table_at(step)) == truth[step]
    for step in draw.sample(steps, min(10, len(steps))):
        fresh = replay_of(trace)
        assert (fresh.plan_at(step), fresh.block_table_at(step)) == truth[step]


@pytest.mark.parametrize("name", sample_names())
def test_a_jump_into_a_recording_gives_what_walking_there_gives(name: str) -> None:
    check_jumps(Trace.open(sample_path(name)))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_jump_into_a_simulated_run_gives_what_walking_there_gives(settings: dict[str, Any], tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    arrivals = np.sort(draw.random(80)) * 4
    workload = Workload(arrivals, draw.integers(5, 200, 80), draw.integers(2, 60, 80), name="drawn")
    given = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "num_blocks": 60, "max_model_len": 300, **settings}
    aborts = [(float(arrivals[request]) + 0.05, request) for request in (7, 30, 55)]
    check_jumps(simulate(workload, out=tmp_path / "run.trace", plans=True, aborts=aborts, **given))
