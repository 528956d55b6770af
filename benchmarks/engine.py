"""The engine on the CPU against transformers and against its own matrix products alone; one thread. Prints JSON.

    python benchmarks/engine.py [--quick] [--runs 3] [--dtypes float32,bfloat16] [--only engine,continuous,products]

A random Llama of 63 million parameters answers 32 requests of 16 to 256 prompt and 8 to 128 output tokens, all there
from the start, greedily and to their full length. Contestants:

- ``engine``: chunked prefill, ragged, 32 slots; ``engine_8``: 8 slots;
- ``naive_32``, ``naive_8``: the same engine, but static batching in padded rectangles;
- ``continuous``: transformers' continuous batching (what `generate_batch` runs), scaled-dot-product attention;
- ``padded_32``, ``padded_8``: transformers' `generate` on batches of 32 and 8;
- ``products``: the matrix products of the engine's own schedule and nothing else, plain weights in the model's dtype;
- ``products_as_laid_out``: the same in the dtype and the weight layout in which the engine multiplies.

Every run has new prompts of the same lengths, the same for all, and the contestants take turns, in another order each
run; loading and a warm-up are left out. Ratios are of times within a run (median, least and most over the runs), by the
clock and of processor time: on a machine that others use too, only the latter says much. Then 64 requests decode
together, for the seconds of each step that are not the model's (``host``).
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # read when torch is loaded

import argparse
import gc
import json
import platform
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from engine_peers import (
    MODEL,
    Contestant,
    Continuous,
    Field,
    Job,
    Measured,
    Ours,
    Padded,
    Products,
    StepFacts,
    differences,
    save_model,
)

from backend.build import DTYPES
from backend.ops.packed_linear import cpu_compute_dtype

SEED = 0
REQUESTS, QUICK_REQUESTS = 32, 8
HOST_RUNNING = 64
NAMES = (
    "engine", "continuous", "products", "products_as_laid_out", "padded_32", "padded_8", "engine_8", "naive_32",
    "naive_8",
)  # fmt: skip
WARM_UP = Job([[5] * 24] * 4, [4] * 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 requests, one run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--only", default=",".join(NAMES), help="contestants; the engine is always one")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    names = [name for name in NAMES if name == "engine" or name in asked.only.split(",")]
    requests, runs = (QUICK_REQUESTS, 1) if asked.quick else (REQUESTS, asked.runs)
    figures = {dtype: measure(dtype, names, requests, runs) for dtype in asked.dtypes.split(",")}
    print(compact({**facts(requests, runs), "figures": figures}))


def compact(value: dict[str, Any]) -> str:
    """JSON with what is innermost on one line."""
    text = json.dumps(value, indent=1)
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda part: re.sub(r"\s*\n\s*", " ", part[0]), text)


def facts(requests: int, runs: int) -> dict[str, Any]:
    """What was run, and on what."""
    prompts, outputs = lengths(requests)
    return {
        "benchmark": "engine", "cpu": _cpu(), "threads": 1,
        "bfloat16_in_hardware": cpu_compute_dtype(torch.bfloat16) is torch.bfloat16,
        "python": platform.python_version(), "torch": torch.__version__,
        "transformers": transformers.__version__, "model": MODEL, "seed": SEED, "requests": requests, "runs": runs,
        "prompt_tokens": sum(prompts), "output_tokens": sum(outputs), "load_average": os.getloadavg(),
    }  # fmt: skip


def lengths(requests: int) -> tuple[list[int], list[int]]:
    """Prompt and output lengths, the same in every run."""
    draw = np.random.Generator(np.random.PCG64(SEED))
    return draw.integers(16, 257, requests).tolist(), draw.integers(8, 129, requests).tolist()


def job(run: int, prompts: Sequence[int], outputs: Sequence[int]) -> Job:
    """Requests of these lengths with the prompts of that run."""
    draw = np.random.Generator(np.random.PCG64([SEED, run]))
    tokens = [draw.integers(3, MODEL["vocab_size"], count).tolist() for count in prompts]
    return Job(tokens, list(outputs))


def measure(dtype: str, names: Sequence[str], requests: int, runs: int) -> dict[str, Any]:
    """All figures of one dtype."""
    kind = DTYPES[dtype]
    with tempfile.TemporaryDirectory() as folder:
        model = save_model(Path(folder), kind, SEED)
        with Field({name: contestant(name, model, Path(folder), dtype) for name in names}) as field:
            for one in field.values():
                one.run(WARM_UP)
            rounds = [play(field, job(run, *lengths(requests)), run) for run in range(runs)]
            steps = {name: one.steps for name, one in field.items() if isinstance(one, Ours)}
        answers = compare(model, [job(run, *lengths(requests)) for run in range(runs)], rounds, kind)
        return {**report(rounds, sum(lengths(requests)[1]), steps), **answers, "host": host(Path(folder), dtype)}


def contestant(name: str, model: transformers.LlamaForCausalLM, folder: Path, dtype: str) -> Contestant:
    """The contestant of that name."""
    kind = DTYPES[dtype]
    word, _, number = name.partition("_")
    if name == "continuous":
        return Continuous(model)
    if word == "products":
        return Products(cpu_compute_dtype(kind), packed=True) if number else Products(kind)
    if word == "padded":
        return Padded(model, int(number))
    policy = "static" if word == "naive" else "chunked"
    return Ours(folder, dtype, policy=policy, slots=int(number or 32))


def play(field: dict[str, Contestant], task: Job, run: int) -> dict[str, Measured]:
    """One run of all: the engine first where the products need its schedule, the others from another one each time."""
    names = list(field)
    order = ["engine", *(names[1:] if run % 2 == 0 else names[:0:-1])]
    measured = {}
    for name in order:
        one = field[name]
        if isinstance(one, Products):
            engine = field["engine"]
            assert isinstance(engine, Ours)
            one.schedule = [(step.rows, step.logits_rows) for step in engine.steps]
        gc.collect()
        measured[name] = one.run(task)
        print(f"run {run}: {name} {measured[name].wall_s:.1f} s, {measured[name].cpu_s:.1f} s CPU", file=sys.stderr)
    return measured


def report(rounds: Sequence[dict[str, Measured]], tokens: int, steps: dict[str, list[StepFacts]]) -> dict[str, Any]:
    """Output tokens a second of each, and how many times those of the engine are that."""
    names = list(rounds[0])
    return {
        "output_tokens_per_s": {name: round(tokens / _middle(rounds, name, "wall_s"), 1) for name in names},
        "output_tokens_per_cpu_s": {name: round(tokens / _middle(rounds, name, "cpu_s"), 1) for name in names},
        "engine_against": {name: ratio(rounds, "engine", name) for name in names[1:]},
        "continuous_against_naive": {
            f"{slots}_slots": ratio(rounds, ours, naive)
            for slots, ours, naive in ((32, "engine", "naive_32"), (8, "engine_8", "naive_8"))
            if {ours, naive} <= set(names)
        },
        "steps": {name: _work(of) for name, of in steps.items()},
    }


def ratio(rounds: Sequence[dict[str, Measured]], one: str, other: str) -> dict[str, list[float]]:
    """How many times as fast `one` is as `other`: median, least and most of the runs, by both clocks."""
    found = {}
    for clock in ("wall_s", "cpu_s"):
        times = [getattr(played[other], clock) / getattr(played[one], clock) for played in rounds]
        found[clock] = [round(figure, 3) for figure in (statistics.median(times), min(times), max(times))]
    return found


def compare(
    model: transformers.LlamaForCausalLM, jobs: Sequence[Job], rounds: Sequence[dict[str, Measured]], kind: torch.dtype
) -> dict[str, Any]:  # fmt: skip
    """Output tokens of the engine's that differ from the others'; their sum over all runs."""
    total: dict[str, dict[str, int]] = {}
    for name in rounds[0]:
        if name == "engine" or name.startswith("products"):
            continue
        each = [
            differences(model, task, played["engine"].tokens, played[name].tokens, explain=kind is torch.float32)
            for task, played in zip(jobs, rounds, strict=True)
        ]
        total[name] = {key: sum(one[key] for one in each) for key in each[0]}
    return {"differing_from_engine": total}


def host(folder: Path, dtype: str) -> dict[str, Any]:
    """Milliseconds a step that are not the model's while 64 requests decode; and of the model's, for comparison.

    With clients, who are told of every token, and without: what remains is planning, the batch and the trace.
    """
    engine = Ours(folder, dtype, slots=HOST_RUNNING)
    task = job(99, [32] * HOST_RUNNING, [128] * HOST_RUNNING)
    try:
        engine.run(WARM_UP)
        engine.run(task)
        told = decode_steps(engine)
        engine.run_without_clients(replace(task, prompts=[prompt[::-1] for prompt in task.prompts]))
        untold = decode_steps(engine)
    finally:
        engine.close()
    return {
        "running": HOST_RUNNING, "steps": len(told), "device_p50_ms": percentiles([s.device_s for s in told])["p50"],
        "host_ms": percentiles([step.host_s for step in told]),
        "host_ms_without_clients": percentiles([step.host_s for step in untold]),
    }  # fmt: skip


def decode_steps(engine: Ours) -> list[StepFacts]:
    """Steps of the last job in which all decode."""
    return [step for step in engine.steps if step.decodes_only and step.running == HOST_RUNNING]


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    found = {f"p{share}": np.percentile(seconds, share) for share in (10, 50, 99)} | {"mean": np.mean(seconds)}
    return {name: round(float(figure) * 1e3, 3) for name, figure in found.items()}


def _work(steps: Sequence[StepFacts]) -> dict[str, float]:
    """What the last run's steps were."""
    return {
        "steps": len(steps),
        "rows": sum(step.rows for step in steps),
        "padding_rows": sum(step.padding_rows for step in steps),
        "device_s": round(sum(step.device_s for step in steps), 3),
        "padding_s": round(sum(step.padding_s for step in steps), 3),
        "host_s": round(sum(step.host_s for step in steps), 3),
    }


def _middle(rounds: Sequence[dict[str, Measured]], name: str, clock: str) -> float:
    return float(statistics.median(getattr(played[name], clock) for played in rounds))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
