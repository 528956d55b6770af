"""A measured run and its simulation make the same plan in every step.

The simulation gets durations, output lengths, and before which step each arrival and abort was seen; never a plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend import Engine, SamplingParams
from backend.outputs import StepEvent
from backend.replay import replay
from backend.workload_log import WorkloadLog
from simulator.rerun import rerun
from traces.same_plans import first_difference
from traces.trace import Trace
from traces.workload import Workload

from .small_models import random_prompts, save_small_llama

POLICIES = ("static", "slots", "orca", "prefill-first", "chunked")
TIGHT = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 128, "block_size": 4, "num_blocks": 60}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_llama(tmp_path_factory.mktemp("model"))


def conversations(count: int, seed: int) -> Workload:
    """Arrivals in bursts, lengths that vary, prompts that share blocks with earlier prompts and outputs."""
    rng = np.random.Generator(np.random.PCG64(seed))
    prompt = rng.integers(4, 48, size=count)
    output = rng.integers(1, 16, size=count)
    blocks = (prompt + output) // 4
    ids = [np.where(np.arange(n) < n // 2, np.arange(n) + 100 * (i % 3), 1000 * (i + 1) + np.arange(n))
           for i, n in enumerate(blocks)]  # fmt: skip
    return Workload(
        arrival_s=np.cumsum(rng.exponential(0.004, size=count) * rng.integers(0, 2, size=count)),
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output + rng.integers(0, 8, size=count),
        priority=rng.integers(0, 3, size=count),
        hash_ids=np.concatenate(ids).astype(np.int64),
        hash_offsets=np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64),
        hash_block=4,
        hash_covers="sequence",
    )


def assert_same(measured: Trace, workload: Workload) -> None:
    difference = first_difference(measured, rerun(measured, workload))
    assert difference is None, str(difference)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("layout", ["padded", "ragged"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_replayed_workload_simulates_to_the_same_plans(
    model: Path, policy: str, layout: str, async_scheduling: bool
) -> None:
    measured, workload = run_replay(model, policy=policy, layout=layout, async_scheduling=async_scheduling)
    assert len(measured.steps) > 50
    assert_same(measured, workload)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_aborts_in_mid_run_simulate_to_the_same_plans(model: Path, policy: str, async_scheduling: bool) -> None:
    measured, workload = run_replay(model, policy=policy, async_scheduling=async_scheduling, abort_every=2)
    assert (measured.requests["finish_reason"] == "abort").sum() > 2
    assert_same(measured, workload)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_answers_that_end_by_eos_simulate_to_the_same_plans(model: Path, policy: str, async_scheduling: bool) -> None:
    with Engine(model, threads=1, policy=policy, async_scheduling=async_scheduling, **TIGHT) as engine:
        log = WorkloadLog(engine.config.block_size)
        engine.observe_ends(log.note)
        params = [SamplingParams(temperature=1.0, seed=i, max_tokens=24, min_tokens=i % 4) for i in range(60)]
        outputs = engine.generate(random_prompts(60), params)
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
    assert engine.trace is not None
    assert_same(engine.trace, log.workload("answers"))


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_answers_that_end_by_stop_strings_simulate_to_the_same_plans(async_scheduling: bool) -> None:
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=30, stop=("e", "t ", "11")) for i in range(40)]
    with Engine("embedded", threads=1, async_scheduling=async_scheduling, **TIGHT) as engine:
        log = WorkloadLog(engine.config.block_size)
        engine.observe_ends(log.note)
        outputs = engine.generate([f"Tell me about {i} things." for i in range(40)], params)
    assert sum(output.stop_reason in ("e", "t ", "11") for output in outputs) > 10
    assert not any(stop in output.text for output in outputs for stop in ("e", "t ", "11"))
    assert engine.trace is not None
    assert_same(engine.trace, log.workload("answers"))


@pytest.mark.parametrize("settings", [
    {"scheduling_policy": "priority"},
    {"enable_prefix_caching": False},
    {"enable_chunked_prefill": False},
    {"long_prefill_token_threshold": 5, "watermark": 0.05},
    {"kv_memory": "reserve-max-tokens"},
    {"cudagraph_capture_sizes": (1, 2, 4, 8, 16)},
])  # fmt: skip
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_every_scheduler_setting_simulates_to_the_same_plans(
    model: Path, settings: dict[str, Any], async_scheduling: bool
) -> None:
    measured, workload = run_replay(model, async_scheduling=async_scheduling, **settings)
    assert_same(measured, workload)


def test_the_first_step_that_differs_is_shown_with_both_plans(model: Path) -> None:
    measured, workload = run_replay(model)
    changed = workload.output_tokens.copy()
    changed[0] += 1
    difference = first_difference(measured, rerun(measured, _with_outputs(workload, changed)))
    assert difference is not None
    assert "rows" in difference.first
    assert "rows" in difference.second
    assert difference.first != difference.second
    ended = measured.spans[(measured.spans["request"] == 0)]["last_step"].max()
    assert difference.step in (ended, ended + 1)


def run_replay(model: Path, *, abort_every: int = 0, **settings: Any) -> tuple[Trace, Workload]:
    """A workload replayed in real time; returns the trace, and the workload that the engine noted."""
    workload = conversations(60, seed=3)
    with Engine(model, threads=1, **{**TIGHT, **settings}) as engine:
        log = WorkloadLog(engine.config.block_size)
        engine.observe_ends(log.note)
        if abort_every:
            engine.observe(_Aborter(engine, abort_every))
        replay(engine, workload, realtime=True)
    assert engine.trace is not None
    return engine.trace, log.workload("replayed")


class _Aborter:
    """Aborts the newest request of every n-th step."""

    def __init__(self, engine: Engine, every: int) -> None:
        self._engine = engine
        self._every = every

    def __call__(self, event: StepEvent) -> None:
        if event.plan is not None and event.plan.step % self._every == 0 and event.plan.admitted:
            self._engine.abort(str(event.plan.admitted[-1].request_id))


def _with_outputs(workload: Workload, outputs: np.ndarray[Any, Any]) -> Workload:
    from dataclasses import replace

    limits = None if workload.max_tokens is None else np.maximum(workload.max_tokens, outputs)
    return replace(workload, output_tokens=outputs, max_tokens=limits)
