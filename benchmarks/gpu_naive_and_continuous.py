"""Part 5 of `gpu.py`: naive against continuous batching on the same requests, and what padding costs in seconds.

A random Llama-3.2-1B in bfloat16, three times as many requests as slots. First whole runs by policy and layout. Then
plans of a static run, each executed three ways, the host out of the way: ``ragged`` (its tokens alone), ``rectangle``
(as the engine runs a padded step: torch's attention under a mask) and ``rectangle_by_kernels`` (every cell a row of the
ragged kernels, so that only the padding differs, not the kernel).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gpu_bench import Bench
from gpu_engines import graph_sizes
from gpu_jobs import BLOCK_SIZE, Job, Ours, random_job
from gpu_models import random_weights

from backend.device import DeviceStep, Runner
from backend.kv_cache import KvCache
from backend.model import Model
from backend.ops import FlatAttention, StepInputs, make_ops
from backend.weights import Weights
from scheduler import PersistentBatch, Request, Scheduler, SchedulerConfig
from scheduler.batch import BlockUpdates, FlatBatch, PaddedBatch

FULL, ROUNDS = (32, (16, 256), (16, 128)), 3
"""Slots, the bounds of prompts and answers, and how many times as many requests as slots."""
WAYS = (
    {"policy": "static", "layout": "padded", "graphs": False},
    {"policy": "static", "layout": "ragged", "graphs": False},
    {"policy": "slots", "layout": "ragged", "graphs": False},
    {"policy": "chunked", "layout": "ragged", "graphs": False},
    {"policy": "slots", "layout": "ragged", "graphs": True},
    {"policy": "chunked", "layout": "ragged", "graphs": True},
)
"""A rectangle is never replayed from a graph: compare it with the others without."""


def run(bench: Bench) -> None:
    name = bench.of("llama-3.2-1b", "llama-3.2-1b", "tiny")
    weights = random_weights(name, torch.bfloat16 if bench.gpu else torch.float32, bench.device)
    slots, prompts, outputs = bench.of(FULL, (32, (16, 256), (8, 64)), (2, (3, 9), (1, 6)))
    job = random_job((2 if bench.dry else ROUNDS) * slots, prompts, outputs, weights.config.vocab_size)
    bench.note("job", {"model": name, "dtype": str(weights.embed.dtype), "slots": slots, **job.facts()})
    bench.each("runs", bench.of(WAYS, WAYS[:4], WAYS[:4]), lambda way: answered(weights, job, slots, way))
    steps = PaddedSteps(bench, weights, job, slots)
    chosen = steps.chosen(bench.of(12, 6, 2))
    rows = bench.each("padded_steps", list(chosen), lambda number: steps.measure(number, *chosen[number]))
    bench.note("padding", summed([row for row in rows if "ragged_s" in row]))


def answered(weights: Weights, job: Job, slots: int, way: dict[str, Any]) -> dict[str, Any]:
    """A job done by one policy in one layout."""
    settings = {"policy": way["policy"], "layout": way["layout"]}
    sizes = graph_sizes(slots) if way["graphs"] else ()
    small = Job(job.prompts[: slots // 2], [2] * (slots // 2))
    with Ours(weights, job, slots=slots, cudagraph_capture_sizes=sizes, **settings) as engine:
        engine.run(small)
        return {**way, **engine.run(job)[0]}


def summed(rows: list[dict[str, Any]]) -> dict[str, float]:
    """All measured steps together."""
    if not rows:
        return {}
    ragged, rectangle, kernels = (sum(row[name] for row in rows) for name in NAMES)
    cells, tokens = sum(row["cells"] for row in rows), sum(row["tokens"] for row in rows)
    return {
        "steps": len(rows), "padding_fraction": 1 - tokens / cells, "padding_s": kernels - ragged,
        "padding_share_of_seconds": 1 - ragged / kernels, "padding_s_as_executed": rectangle - ragged,
    }  # fmt: skip


NAMES = ("ragged_s", "rectangle_s", "rectangle_by_kernels_s")


class PaddedSteps:
    """Steps of a static run, without an engine: what the scheduler plans for the job, laid out in both ways."""

    def __init__(self, bench: Bench, weights: Weights, job: Job, slots: int) -> None:
        self._bench = bench
        blocks = 1 + 3 * slots * -(-(job.longest + 1) // BLOCK_SIZE)  # a batch reserves its longest for each
        self._settings = SchedulerConfig(
            policy="static", max_num_seqs=slots, block_size=BLOCK_SIZE, num_blocks=blocks,
            max_model_len=job.longest + 1, batch_timeout_s=0.0,
        )  # fmt: skip
        self._job = job
        ops = make_ops("triton", bench.device.type)
        longest = self._settings.max_model_len
        self._ops = _PreparedOnce(ops)
        self._model = Model(weights.config, weights, self._ops, max_positions=longest)
        self._cache = KvCache(weights.config, blocks, BLOCK_SIZE, weights.embed.dtype, bench.device)
        self._runner = Runner(
            self._model, self._cache, num_slots=slots, max_model_len=longest, device=bench.device
        )  # fmt: skip

    def chosen(self, count: int) -> dict[int, tuple[FlatBatch, PaddedBatch]]:
        """So many steps by number, the first (a prefill) among them, the others evenly over the run."""
        every = list(self._planned())
        picked = sorted({round(place) for place in np.linspace(0, len(every) - 1, count)})
        return {place: every[place] for place in picked}

    def measure(self, number: int, flat: FlatBatch, padded: PaddedBatch) -> dict[str, Any]:
        """Device seconds of the model's forward, three ways."""
        ways = (self._inputs(flat), self._inputs(padded), self._by_kernels(padded))
        seconds = dict(zip(NAMES, map(self._forward_s, ways), strict=True))
        rows, cols = padded.positions.shape
        return {
            "step": number, "tokens": len(flat.positions), "rows": rows, "cols": cols, "cells": rows * cols, **seconds,
            "padding_s": seconds["rectangle_by_kernels_s"] - seconds["ragged_s"],
        }  # fmt: skip

    def _planned(self) -> Iterator[tuple[FlatBatch, PaddedBatch]]:
        scheduler = Scheduler(self._settings, track_blocks=True, token_rows=True)
        batch = PersistentBatch.of(scheduler)
        for index, (prompt, count) in enumerate(zip(self._job.prompts, self._job.outputs, strict=True)):
            scheduler.add(Request(f"r{index}", prompt, count, ignore_eos=True))
        while scheduler.has_work:
            plan = scheduler.schedule()
            if plan.empty and not plan.finished:
                raise RuntimeError("the static run came to a halt")
            if plan.empty:
                continue
            batch.apply(plan)
            rows = scheduler.rows(plan)
            yield batch.build(plan, rows), batch.build_padded(plan, rows, scheduler.burning())
            scheduler.update(plan, np.zeros(len(rows.requests), dtype=np.int32))

    def _inputs(self, batch: FlatBatch | PaddedBatch) -> StepInputs:
        return self._runner._inputs(_step_of(batch))

    def _by_kernels(self, batch: PaddedBatch) -> StepInputs:
        """Every row a request of as many tokens as the rectangle has columns, over as many positions as it is wide."""
        inputs = self._inputs(batch)
        rows, cols = batch.positions.shape
        table = np.zeros((rows, -(-batch.width // BLOCK_SIZE)), dtype=np.int32)
        held = min(table.shape[1], batch.block_table.shape[1])
        table[:, :held] = batch.block_table[:, :held]
        device = self._bench.device
        inputs.attention = FlatAttention(
            torch.arange(0, rows * cols + 1, cols, dtype=torch.int32, device=device),
            torch.full((rows,), max(batch.width, cols), dtype=torch.int32, device=device),
            torch.from_numpy(table).to(device), cols, batch.width, host=None,
        )  # fmt: skip
        return inputs

    def _forward_s(self, inputs: StepInputs) -> float:
        self._ops.forget()
        return self._bench.seconds(lambda: self._model.forward(inputs, self._cache))


def _step_of(batch: FlatBatch | PaddedBatch) -> DeviceStep:
    """A step that is nothing but its batch."""
    nothing = np.zeros(0, dtype=np.int64)
    return DeviceStep(
        batch=batch, updates=BlockUpdates(nothing, nothing, nothing.astype(np.int32)), seated=[], slots=batch.slots,
        computed=nothing, scheduled=nothing, padding=0, samples=nothing.astype(np.bool_), sampling=None, forced=None,
    )  # fmt: skip


class _PreparedOnce:
    """Operations that keep what they have prepared for the step until told to forget it: a rectangle's preparation
    waits for the device, which is the host's affair, not the padding's.
    """

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self._prepared: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def prepare(self, *arguments: Any) -> Any:
        if self._prepared is None:
            self._prepared = self._ops.prepare(*arguments)
        return self._prepared

    def forget(self) -> None:
        self._prepared = None
