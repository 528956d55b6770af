"""Part 6 of `gpu.py`: a small engine written in CUDA C++ for Llama-3.2-1B, and what it left unmeasured.

It keeps a block table of its own for each layer (2 sequences x 16 layers x 128 blocks = 4,096 entries) and copies all
of it to the device, from ordinary memory and waiting, before the attention of every layer. Here that is done against
one copy a step, and against sending appended ids alone. Its ``BATCH_SIZE`` of 2 is, by its own words, "not even close
to being good": the sweep shows what other numbers of slots give, under its policy (``slots``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpu_bench import Bench
from gpu_jobs import Job, Ours, random_job
from gpu_models import random_weights

from backend.kernels.prepare import append_blocks

SEQUENCES, LAYERS, BLOCKS = 2, 16, 128
STEPS = 200
REQUESTS = 64
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
PROMPT_TOKENS, OUTPUT_TOKENS = (13, 17), (8, 64)
"""Prompts are as long as its four; the answers' lengths are assumed."""


def run(bench: Bench) -> None:
    ways = block_table_copies(bench)
    bench.each("block_table", list(ways), lambda name: copied(bench, name, ways[name]))
    name = bench.of("llama-3.2-1b", "llama-3.2-1b", "tiny")
    weights = random_weights(name, torch.bfloat16 if bench.gpu else torch.float32, bench.device)
    count, outputs = bench.of((REQUESTS, OUTPUT_TOKENS), (REQUESTS // 2, OUTPUT_TOKENS), (4, (2, 4)))
    job = random_job(count, PROMPT_TOKENS, outputs, weights.config.vocab_size)
    bench.note("job", {"model": name, "dtype": str(weights.embed.dtype), "policy": "slots", **job.facts()})
    sizes = bench.of(BATCH_SIZES, BATCH_SIZES[::2], (1, 2))
    bench.each("batch_size", sizes, lambda slots: answered(weights, job, slots))


def block_table_copies(bench: Bench) -> dict[str, Callable[[], object]]:
    """What crosses in a step, by way. A step of its 2 sequences appends 2 ids in each layer every 16 tokens: at most 2
    with one table for all layers.
    """
    table = torch.zeros((SEQUENCES, LAYERS, BLOCKS), dtype=torch.int32)
    pinned = table.pin_memory() if bench.gpu else table
    there = table.to(bench.device)
    packed = torch.zeros((3, SEQUENCES), dtype=torch.int32)
    packed = packed.pin_memory() if bench.gpu else packed
    rows = torch.zeros((SEQUENCES, BLOCKS), dtype=torch.int32, device=bench.device)

    def append() -> None:
        slots, columns, ids = packed.to(bench.device, non_blocking=True)
        append_blocks(rows, slots, columns, ids)

    def per_layer() -> None:
        for _ in range(LAYERS):
            there.copy_(table)

    return {
        "whole table, every layer, waiting": per_layer,
        "whole table, once a step, waiting": lambda: there.copy_(table),
        "whole table, once a step, pinned": lambda: there.copy_(pinned, non_blocking=True),
        "appended ids, pinned": append,
        "nothing (the loop itself)": lambda: None,
    }


def copied(bench: Bench, name: str, step: Callable[[], object]) -> dict[str, Any]:
    """Microseconds a step: of the host, which stands still while it waits, and of the device."""
    repeats = bench.of(STEPS, STEPS, 3)
    step()
    host_s = bench.wall_seconds(lambda: [step() for _ in range(repeats)]) / repeats
    return {"way": name, "entries": SEQUENCES * LAYERS * BLOCKS, "host_us_a_step": host_s * 1e6,
            "device_us_a_step": bench.seconds(step, ahead="waiting" not in name) * 1e6}  # fmt: skip


def answered(weights: Any, job: Job, slots: int) -> dict[str, Any]:
    """The job with so many slots; decodes replayed as a graph of just so many rows."""
    small = Job(job.prompts[:slots], [2] * min(slots, len(job.prompts)))
    sizes = tuple(size for size in BATCH_SIZES if size <= slots)
    with Ours(weights, job, slots=slots, policy="slots", cudagraph_capture_sizes=sizes) as engine:
        engine.run(small)
        figures = engine.run(job)[0]
    return {"batch_size": slots, **figures, "step_s": figures["seconds"] / figures["steps"]}
