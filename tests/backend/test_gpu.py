"""The GPU's way through the engine, its kernels in Triton's interpreter: the tokens are those of the CPU's way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend import Engine, SamplingParams
from backend.gpu import GpuRunner
from backend.sizing import capture_sizes

from .small_models import random_prompts, save_small_llama

SETTINGS: dict[str, Any] = {
    "dtype": "float32", "threads": 1, "max_num_seqs": 4, "max_num_batched_tokens": 24, "max_model_len": 64,
    "block_size": 4, "num_blocks": 40,
}  # fmt: skip
COUNT = 5
FEW_BLOCKS = 12
"""Too few for the requests that run together: some are preempted."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_llama(tmp_path_factory.mktemp("model"))


def answers(model: Path, ops: str, **settings: Any) -> tuple[list[list[int]], int]:
    """Token ids of each answer, and how often a request lost its seat."""
    params = [SamplingParams(temperature=float(i % 2), seed=i, max_tokens=4, top_k=20 * (i % 3)) for i in range(COUNT)]
    with Engine(model, ops=ops, **{**SETTINGS, **settings}) as engine:
        outputs = engine.generate(random_prompts(COUNT, longest=12), params)
    assert engine.trace is not None
    return [output.token_ids for output in outputs], engine.trace.summary()["preemptions"]


@pytest.mark.parametrize("settings", [
    {},
    {"async_scheduling": True},
    {"cudagraph_capture_sizes": (2, 4, 8, 16, 24)},
    {"num_blocks": FEW_BLOCKS, "enable_prefix_caching": False},
    {"policy": "static"},
], ids=["sync", "async", "graph-padding", "preempting", "padded"])  # fmt: skip
def test_inputs_made_on_the_device_give_the_same_tokens(model: Path, settings: dict[str, Any]) -> None:
    tokens, preempted = answers(model, "triton", **settings)
    assert (tokens, preempted) == answers(model, "torch", **settings)
    assert (preempted > 0) == (settings.get("num_blocks") == FEW_BLOCKS)


def test_flat_steps_bring_no_tensors_of_their_own() -> None:
    assert GpuRunner.lays_out


def test_captured_sizes_reach_every_number_of_slots() -> None:
    assert capture_sizes(4) == (1, 2, 4, 8)
    for slots in (1, 7, 8, 9, 64, 256):
        assert max(capture_sizes(slots)) >= slots
        assert max(capture_sizes(slots)) < slots + 8
