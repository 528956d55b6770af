"""`chunked` decides what vLLM's own V1 scheduler decided, step by step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler import Request, Scheduler, SchedulerConfig
from tests.conftest import ROOT

DATA = Path(os.environ.get("BATCHSCOPE_DATA", ROOT.parent / "shared" / "data"))
FOLDER = Path(os.environ.get("BATCHSCOPE_VLLM_DECISIONS", DATA / "reference" / "vllm-0.33-scheduler"))
CASES = sorted(FOLDER.glob("*.json"))
SAMPLED_TOKEN = 5


def prompt_of(index: int, spec: dict[str, Any]) -> np.ndarray:
    """The prompt's tokens by the recording's rule."""
    at = np.arange(spec["prompt_len"])
    shared = 1 + (spec["shared_group"] * 7919 + at) % 31999
    own = 1 + (1000003 * (index + 1) + at) % 31999
    return np.where(at < spec["shared_len"], shared, own).astype(np.int32)


def request_of(index: int, spec: dict[str, Any]) -> Request:
    prompt = prompt_of(index, spec)
    return Request(
        index, prompt, spec["max_tokens"], priority=spec["priority"], arrival_s=float(index), ignore_eos=True
    )


def replay(case: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """What our scheduler decides in each of the recorded steps."""
    settings = dict(case["config"])
    settings["scheduling_policy"] = settings.pop("policy")
    scheduler = Scheduler(SchedulerConfig(policy="chunked", **settings), token_rows=True, **options)
    arrived: set[int] = set()
    steps = []
    for number in range(len(case["steps"])):
        for index, spec in enumerate(case["requests"]):
            if spec["arrival_step"] == number:
                scheduler.add(request_of(index, spec))
                arrived.add(index)
        for abort in case["aborts"]:
            if abort["step"] == number and abort["request"] in arrived:
                scheduler.abort(abort["request"])
        plan = scheduler.schedule()
        scheduler.check_integrity()
        scheduled = [] if plan.empty else rows_of(scheduler, plan)
        finished = [r.request_id for r in plan.finished]
        if not plan.empty:
            sampled = np.full(len(scheduled), SAMPLED_TOKEN, dtype=np.int32)
            finished = [r.request_id for r in scheduler.update(plan, sampled)]
            scheduler.check_integrity()
        steps.append(
            {
                "scheduled": scheduled,
                "preempted": sorted(r.request_id for r in plan.preempted),
                "finished": sorted(finished),
                "running": [r.request_id for r in scheduler.seats.running()],
                "waiting": len(scheduler.waiting),
                "free_blocks": scheduler.kv.pool.num_free,
            }
        )
    return steps


def rows_of(scheduler: Scheduler, plan: Any) -> list[list[int]]:
    rows = scheduler.rows(plan)
    ids = [r.request_id for r in rows.requests]
    return [list(row) for row in zip(ids, rows.computed.tolist(), rows.scheduled.tolist(), strict=True)]


@pytest.mark.skipif(not CASES, reason=f"no recorded decisions in {FOLDER}; set BATCHSCOPE_VLLM_DECISIONS")
@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_step_is_decided_as_vllm_decided_it(path: Path, plain: bool) -> None:
    case = json.loads(path.read_text())
    for number, (ours, theirs) in enumerate(zip(replay(case, plain=plain), case["steps"], strict=True)):
        assert ours == theirs, f"{path.name}, step {number}"
