"""Greedy tokens are those of the model alone, whatever the batch: every policy, layout, chunk, shortage and overlap.

float64, so that no rounding can hide a fault: tokens are compared one by one with transformers' `generate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backend import Engine, SamplingParams
from backend.outputs import RequestOutput

from .small_models import greedy_alone, random_prompts, save_small_llama

COUNT = 200
POLICIES = ("static", "slots", "orca", "prefill-first", "chunked")
LAYOUTS = ("padded", "ragged")


class Reference:
    """Prompts, limits, and what the model gives for each alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = save_small_llama(folder)
        self.prompts = random_prompts(COUNT)
        rng = np.random.Generator(np.random.PCG64(1))
        self.params = [SamplingParams(temperature=0.0, max_tokens=int(n)) for n in rng.integers(1, 24, size=COUNT)]
        limits = [params.max_tokens or 0 for params in self.params]
        self.outputs = greedy_alone(self.folder, self.prompts, limits, torch.float64)

    def run(self, count: int, **settings: Any) -> tuple[Engine, list[RequestOutput]]:
        defaults = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": 128, "num_blocks": 400}
        with Engine(self.folder, dtype="float64", threads=1, **{**defaults, **settings}) as engine:
            outputs = engine.generate(self.prompts[:count], self.params[:count])
        engine.check_integrity()
        return engine, outputs

    def check(self, count: int = COUNT, **settings: Any) -> Engine:
        engine, outputs = self.run(count, **settings)
        wrong = [i for i, output in enumerate(outputs) if output.token_ids != self.outputs[i]]
        first = (outputs[wrong[0]].token_ids, self.outputs[wrong[0]]) if wrong else None
        assert not wrong, f"{len(wrong)} of {count} differ; the first: {first}"
        return engine


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("model"))


def test_reference_outputs_vary_in_length_and_end_by_eos_and_by_length(reference: Reference) -> None:
    lengths = {len(output) for output in reference.outputs}
    by_length = sum(len(o) == p.max_tokens for o, p in zip(reference.outputs, reference.params, strict=True))
    assert len(lengths) > 10
    assert 20 < by_length < COUNT - 20


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_those_of_the_model_alone(
    reference: Reference, policy: str, layout: str, async_scheduling: bool
) -> None:
    reference.check(policy=policy, layout=layout, async_scheduling=async_scheduling)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(("budget", "count"), [(1, 24), (3, 60), (7, COUNT), (16, COUNT), (33, COUNT), (1000, COUNT)])
def test_any_chunk_size_gives_the_same_tokens(
    reference: Reference, budget: int, count: int, async_scheduling: bool
) -> None:
    reference.check(count, max_num_batched_tokens=budget, async_scheduling=async_scheduling)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("policy", ["orca", "prefill-first", "chunked"])
def test_preemptions_change_no_token(reference: Reference, policy: str, layout: str, async_scheduling: bool) -> None:
    engine = reference.check(
        policy=policy, layout=layout, async_scheduling=async_scheduling, block_size=4, num_blocks=60,
        enable_prefix_caching=False,
    )  # fmt: skip
    assert engine.stats().preemptions > 10


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("block_size", [1, 5, 8])
def test_prefix_hits_and_preemptions_change_no_token(
    reference: Reference, block_size: int, async_scheduling: bool
) -> None:
    engine = reference.check(
        block_size=block_size, num_blocks=1 + 240 // block_size, async_scheduling=async_scheduling
    )  # fmt: skip
    assert engine.stats().prefix_hits > 200
    assert engine.stats().preemptions > 0


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_graph_padding_changes_no_token(reference: Reference, async_scheduling: bool) -> None:
    engine = reference.check(cudagraph_capture_sizes=(4, 8, 24, 64), async_scheduling=async_scheduling)
    assert engine.trace is not None
    assert engine.trace.steps["padding_graph"].sum() > 100


@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("release", ["batch", "request"])
def test_either_padding_side_of_a_static_batch_gives_the_same_tokens(
    reference: Reference, padding_side: str, release: str
) -> None:
    reference.check(policy="static", padding_side=padding_side, release=release)


def test_priorities_and_a_threshold_change_no_token(reference: Reference) -> None:
    reference.check(scheduling_policy="priority", long_prefill_token_threshold=6, block_size=4, num_blocks=60)
