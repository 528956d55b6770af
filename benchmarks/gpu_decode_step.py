"""Part 3 of `gpu.py`: a whole decode step, with a CUDA graph and without, against reading the weights once.

Random models in bfloat16. A step is all that the engine queues for it: requests' numbers to the device, index tensors,
the model, the likeliest tokens, their way into the token table. ``weights_s`` is the bytes of weights over the
bandwidth of a copy, ``weights_and_kv_s`` adds the K and V of all contexts. ``..._device_s`` are steps that were queued
before the device began, as when steps are planned ahead; the others begin when the host does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gpu_bench import Bench
from gpu_models import bytes_read, hf_config, random_weights

from backend.device import DeviceStep
from backend.gpu import GpuRunner
from backend.kv_cache import KvCache
from backend.model import Model
from backend.model_config import ModelConfig
from backend.ops import make_ops
from backend.weights import Weights, num_bytes
from scheduler.batch import BlockUpdates
from scheduler.config import SchedulerConfig

MODELS = ("llama-3.2-1b", "llama-3.1-8b")
BATCHES, CONTEXT, BLOCK_SIZE = (1, 32, 128), 1024, 16
ROOM = 64
"""Positions beyond the context."""


def run(bench: Bench) -> None:
    dtype = torch.bfloat16 if bench.gpu else torch.float32
    bench.note("shape", {"dtype": str(dtype), "context": bench.of(CONTEXT, CONTEXT, 20), "block_size": BLOCK_SIZE})
    for name in bench.of(MODELS, MODELS, ("tiny",)):
        if num_bytes(ModelConfig.of(hf_config(name)), dtype) > 0.8 * bench.free_bytes():
            bench.note(name, {"skipped": "its weights do not fit"})
            continue
        steps = Steps(bench, random_weights(name, dtype, bench.device))
        bench.each(name, bench.of(BATCHES, BATCHES[::2], (1, 3)), steps.measure)
        del steps  # and the weights with it


class Steps:
    """Decode steps of one model."""

    def __init__(self, bench: Bench, weights: Weights) -> None:
        self._bench = bench
        self._context = bench.of(CONTEXT, CONTEXT, 20)
        self._weights_bytes = bytes_read(weights)
        self._config = weights.config
        self._dtype = weights.embed.dtype
        longest = self._context + ROOM
        self._model = Model(weights.config, weights, make_ops("triton", bench.device.type), max_positions=longest)

    def measure(self, requests: int) -> dict[str, Any]:
        """Seconds of a step of so many requests."""
        kv = KvCache.bytes_per_block(self._config, 1, self._dtype) * requests * (self._context + 1)
        if 1.2 * kv > self._bench.free_bytes():
            return {"requests": requests, "skipped": f"{kv} bytes of K and V do not fit"}
        runner, step = self._runner(requests)
        eager_s = self._bench.seconds(lambda: runner.run(step), ahead=False)
        device_s = self._bench.seconds(lambda: runner.run(step))
        graph: dict[str, Any] = {"graph_s": None, "graph_device_s": None}  # a CPU has none
        if self._bench.gpu:
            runner.capture((requests,))
            graph["graph_s"] = self._bench.seconds(lambda: runner.run(step), ahead=False)
            graph["graph_device_s"] = self._bench.seconds(lambda: runner.run(step))
        weights_s = self._weights_bytes / self._bench.bandwidth
        both_s = (self._weights_bytes + kv) / self._bench.bandwidth
        fastest_s = graph["graph_device_s"] or device_s
        return {
            "requests": requests, **graph, "launched_s": eager_s, "launched_device_s": device_s,
            "weights_bytes": self._weights_bytes, "kv_bytes": kv, "copy_bytes_per_s": self._bench.bandwidth,
            "weights_s": weights_s, "weights_and_kv_s": both_s, "share_of_bandwidth": both_s / fastest_s,
        }  # fmt: skip

    def _runner(self, requests: int) -> tuple[GpuRunner, DeviceStep]:
        """A runner whose requests have their contexts (zeros: their K and V are never looked at), and their step."""
        columns = -(-(self._context + ROOM) // BLOCK_SIZE)
        config = SchedulerConfig(
            max_num_seqs=requests, max_model_len=self._context + ROOM, block_size=BLOCK_SIZE,
            num_blocks=1 + requests * columns,
        )  # fmt: skip
        cache = KvCache(self._config, config.num_blocks, BLOCK_SIZE, self._dtype, self._bench.device)
        runner = GpuRunner(self._model, cache, config, self._bench.device)
        ids = np.random.Generator(np.random.PCG64(0)).permutation(requests * columns).astype(np.int32) + 1
        granted = BlockUpdates(np.repeat(np.arange(requests), columns), np.tile(np.arange(columns), requests), ids)
        runner.run(self._step(requests, granted))
        nothing = np.zeros(0, dtype=np.int64)
        return runner, self._step(requests, BlockUpdates(nothing, nothing, nothing.astype(np.int32)))

    def _step(self, requests: int, updates: BlockUpdates) -> DeviceStep:
        return DeviceStep(
            batch=None, updates=updates, seated=[], slots=np.arange(requests),
            computed=np.full(requests, self._context), scheduled=np.ones(requests, dtype=np.int64), padding=0,
            samples=np.ones(requests, dtype=np.bool_), sampling=None, forced=None,
        )  # fmt: skip
