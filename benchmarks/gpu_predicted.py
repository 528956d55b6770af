"""What the simulator's roofline expects of `gpu.py`'s figures, as Markdown tables (docs/gpu.md). Needs no GPU.

    python benchmarks/gpu_predicted.py [--hardware h200]

Unlike `gpu.py` it needs the whole project. The roofline knows vLLM's kernels, not ours, and steps that are planned
ahead and replayed as graphs; where a sheet was fitted to nothing measured on the device, it is generic.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import gpu_attention as attention
import gpu_decode_step as decode
from gpu_engines import FULL as MANY
from gpu_engines import STEP_TOKENS
from gpu_jobs import Job, random_job
from gpu_models import SHAPES
from gpu_naive_and_continuous import FULL as VARIED
from gpu_naive_and_continuous import ROUNDS
from gpu_seed import BATCH_SIZES, OUTPUT_TOKENS, PROMPT_TOKENS, REQUESTS

from scheduler.plan import StepShape
from simulator import simulate
from simulator.costs.roofline import RooflineCost
from simulator.hardware import get_hardware
from simulator.models import get_model

SMALL, LARGE = decode.MODELS
VOCAB = SHAPES[SMALL]["vocab_size"]
CONTEXTS = ((1, 512), (1, 32768), (8, 4096), (64, 4096), (256, 4096))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", default="h200")
    name = parser.parse_args().hardware
    table("decode attention", ("requests", "context", "µs", "GB/s of K and V"), decode_attention(name))
    table("prefill attention", ("requests", "tokens", "after", "µs", "TFLOP/s"), prefill_attention(name))
    table("decode step", ("model", "requests", "ms"), decode_steps(name))
    table("engines", ("requests", "slots", "policy", "layout", "s", "output tokens/s"), engines(name))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def cost(model: str, hardware: str) -> RooflineCost:
    return RooflineCost(model=get_model(model), hardware=get_hardware(hardware))


def decode_attention(hardware: str) -> Iterable[tuple[object, ...]]:
    layers = SHAPES[LARGE]["num_hidden_layers"]
    for requests, context in CONTEXTS:
        seconds = cost(LARGE, hardware).attention_s(requests, requests * context, 0, 0, 0, 0) / layers
        count = 2 * 2 * requests * context * attention.KV_HEADS * attention.HEAD_DIM
        yield requests, f"{context:,}", f"{seconds * 1e6:.0f}", f"{count / seconds / 1e9:,.0f}"


def prefill_attention(hardware: str) -> Iterable[tuple[object, ...]]:
    layers = SHAPES[LARGE]["num_hidden_layers"]
    for requests, tokens, before in attention.PREFILLS:
        pairs = requests * (tokens * before + tokens * (tokens + 1) // 2)
        rows, read = requests * tokens, requests * (tokens + before)
        seconds = cost(LARGE, hardware).attention_s(0, 0, rows, read, pairs, requests) / layers
        flops = 4 * attention.Q_HEADS * attention.HEAD_DIM * pairs
        yield requests, f"{tokens:,}", f"{before:,}", f"{seconds * 1e6:,.0f}", f"{flops / seconds / 1e12:.0f}"


def decode_steps(hardware: str) -> Iterable[tuple[object, ...]]:
    for model in decode.MODELS:
        for requests in decode.BATCHES:
            shape = StepShape.of("ragged", [1] * requests, [decode.CONTEXT] * requests)
            yield model, requests, f"{cost(model, hardware).step_cost(shape).device_s * 1e3:.2f}"


def engines(hardware: str) -> Iterable[tuple[object, ...]]:
    """The jobs of parts 4, 5 and 6, the host's time hidden."""
    many = random_job(*MANY, VOCAB)
    yield simulated(many, MANY[0], "chunked", "ragged", hardware)
    varied = random_job(ROUNDS * VARIED[0], *VARIED[1:], VOCAB)
    for policy, layout in (("static", "padded"), ("static", "ragged"), ("slots", "ragged"), ("chunked", "ragged")):
        yield simulated(varied, VARIED[0], policy, layout, hardware)
    short = random_job(REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS, VOCAB)
    for slots in BATCH_SIZES:
        yield simulated(short, slots, "slots", "ragged", hardware)


def simulated(job: Job, slots: int, policy: str, layout: str, hardware: str) -> tuple[object, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
            writer.writerows((0.0, len(p), n) for p, n in zip(job.prompts, job.outputs, strict=True))
        settings: dict[str, Any] = {"max_num_batched_tokens": STEP_TOKENS, "batch_timeout_s": 0.0}
        trace = simulate(
            path, policy=policy, layout=layout, model=SMALL, hardware=hardware, max_num_seqs=slots,
            async_scheduling=policy != "static", **settings,
        )  # fmt: skip
        seconds = trace.summary()["makespan_s"]
    return len(job.prompts), slots, policy, layout, f"{seconds:.2f}", f"{sum(job.outputs) / seconds:,.0f}"


if __name__ == "__main__":
    main()
