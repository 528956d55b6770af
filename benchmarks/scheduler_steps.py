"""How long `schedule()` + `update()` take with a full batch: steady decode, real tokens cached, and churn. JSON.

    python benchmarks/scheduler_steps.py

Per-request plan arrays and new block ids are built in every step, as an engine needs them. Each case is run several
times; the figure is the best run's mean, which other load on the machine disturbs least.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scheduler import Request, Scheduler, SchedulerConfig

WARM_STEPS, STEPS, RUNS = 64, 400, 5
PROMPT = 64
CASES = {
    "steady": {"tokens": False, "churn": False},
    "steady_cached_tokens": {"tokens": True, "churn": False},
    "churn": {"tokens": False, "churn": True},
    "churn_cached_tokens": {"tokens": True, "churn": True},
}
VLLM_US = {32: 420, 256: 3160, 1024: 14000}
"""vLLM 0.33 with prefix caching on, steady decode, on a 2-core machine without a GPU."""


def build(running: int, *, tokens: bool, churn: bool) -> tuple[Scheduler, np.random.Generator]:
    """A scheduler with a full batch that has decoded for a while."""
    config = SchedulerConfig(
        max_num_seqs=running,
        max_num_batched_tokens=running + 8 * PROMPT,
        max_model_len=2048,
        num_blocks=running * 128 + 1,
        enable_prefix_caching=tokens,
        eos_token_ids=(2,),
    )
    scheduler = Scheduler(config, track_blocks=True, token_rows=tokens)
    generator = np.random.Generator(np.random.PCG64(7))
    for index in range(running):
        add(scheduler, index, generator, tokens=tokens, churn=churn)
    return scheduler, generator


def add(scheduler: Scheduler, index: int, generator: np.random.Generator, *, tokens: bool, churn: bool) -> None:
    """Queue one more request; with churn it ends after 64 to 448 outputs (256 on average), else never."""
    prompt = generator.integers(10, 30000, PROMPT, dtype=np.int32) if tokens else PROMPT
    outputs = int(generator.integers(64, 449)) if churn else 1900
    scheduler.add(Request(index, prompt, outputs, ignore_eos=not tokens))


def measure(running: int, *, tokens: bool, churn: bool) -> dict[str, float]:
    """Mean microseconds of a step, and how many requests end a step."""
    scheduler, generator = build(running, tokens=tokens, churn=churn)
    sampled = generator.integers(10, 30000, running, dtype=np.int32)
    added, ended, spent = running, 0, 0.0
    for step in range(WARM_STEPS + STEPS + (256 if churn else 0)):
        start = time.perf_counter()
        plan = scheduler.schedule()
        rows = scheduler.rows(plan)
        finished = scheduler.update(plan, sampled[: len(rows.slots)] if tokens else None)
        spent += time.perf_counter() - start
        ended += len(finished)
        for _ in finished:
            add(scheduler, added, generator, tokens=tokens, churn=churn)
            added += 1
        if step == WARM_STEPS + (256 if churn else 0) - 1:
            spent, ended = 0.0, 0
    return {"us_per_step": spent / STEPS * 1e6, "ends_per_step": ended / STEPS}


def main() -> None:
    """Print all cases as one JSON object."""
    figures = []
    for running in (32, 256, 1024):
        for name, case in CASES.items():
            best = min((measure(running, **case) for _ in range(RUNS)), key=lambda run: run["us_per_step"])
            row = {"case": name, "running": running, "us_per_step": round(best["us_per_step"], 2)}
            figures.append({**row, "ends_per_step": best["ends_per_step"], "vllm_us_per_step": VLLM_US[running]})
    print(json.dumps({"benchmark": "scheduler", "python": sys.version.split()[0], "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
