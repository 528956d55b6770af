"""Part 4 of `gpu.py`: the engine, with and without its tricks, against transformers' continuous batching.

A random Llama-3.2-1B in bfloat16, the same weights for both; requests that arrive together, greedy, to their full
lengths. A smaller job before each measured one compiles what there is to compile.
"""

from __future__ import annotations

from typing import Any

import torch
from gpu_bench import Bench
from gpu_jobs import Job, Ours, Theirs, Tokens, equal_share, random_job
from gpu_models import random_model, weights_of

from backend.sizing import capture_sizes

FULL = (128, (64, 512), (32, 128))
"""Requests, all with a slot, and the bounds of their prompts and answers."""
STEP_TOKENS = 2048
VARIANTS = (
    {"async_scheduling": True, "graphs": True},
    {"async_scheduling": False, "graphs": True},
    {"async_scheduling": True, "graphs": False},
    {"async_scheduling": False, "graphs": False},
)
PEERS = (
    {"attention": "sdpa", "step_tokens": 512},
    {"attention": "sdpa", "step_tokens": STEP_TOKENS},
    {"attention": "paged|eager", "step_tokens": 512},
)
"""Its mask grows with the tokens of a step, so fewer may be faster. Its FlashAttention path needs a package more."""
GRAPH_SIZES = 16
"""Every so many rows a graph, from there on: recording one for every 8 would take longer than the jobs."""


def run(bench: Bench) -> None:
    name = bench.of("llama-3.2-1b", "llama-3.2-1b", "tiny")
    model = random_model(name, torch.bfloat16 if bench.gpu else torch.float32, bench.device)
    slots, prompts, outputs = bench.of(FULL, (64, (64, 512), (32, 64)), (3, (3, 9), (2, 5)))
    job = random_job(slots, prompts, outputs, model.config.vocab_size)
    small = random_job(min(slots, 8), prompts, (2, 4), model.config.vocab_size, seed=1)
    bench.note("job", {"model": name, "dtype": str(model.dtype), "slots": slots, **job.facts()})
    contest = Contest(bench, model, job, small, slots)
    bench.each("engine", VARIANTS[:2], contest.ours)
    bench.each("transformers", bench.of(PEERS, PEERS[:1], PEERS[:1]), contest.theirs)
    bench.each("engine_without_graphs", bench.of(VARIANTS[2:], VARIANTS[2:3], ()), contest.ours)


class Contest:
    """The same job for all."""

    def __init__(self, bench: Bench, model: Any, job: Job, small: Job, slots: int) -> None:
        self._bench = bench
        self._model = model
        self._weights = weights_of(model)
        self._job, self._small, self._slots = job, small, slots
        self._tokens: Tokens | None = None

    def ours(self, variant: dict[str, bool]) -> dict[str, Any]:
        settings = {"async_scheduling": variant["async_scheduling"], "max_num_batched_tokens": STEP_TOKENS}
        sizes = graph_sizes(self._slots) if variant["graphs"] else ()
        engine = Ours(self._weights, self._job, slots=self._slots, cudagraph_capture_sizes=sizes, **settings)
        with engine:
            return {**variant, **self._answered(engine)}

    def theirs(self, variant: dict[str, Any]) -> dict[str, Any]:
        with Theirs(self._model, self._job, slots=self._slots, **variant) as peer:
            return {**variant, **self._answered(peer)}

    def _answered(self, contestant: Ours | Theirs) -> dict[str, Any]:
        contestant.run(self._small)
        figures, tokens = contestant.run(self._job)
        self._tokens = self._tokens or tokens
        return {**figures, "equal_to_first_engine": equal_share(tokens, self._tokens)}


def graph_sizes(slots: int) -> tuple[int, ...]:
    """Rows to record decodes for: few, as recording takes time too."""
    return tuple(size for size in capture_sizes(slots) if size <= GRAPH_SIZES or size % GRAPH_SIZES == 0)
