"""Whole models through the Triton operations give the logits of the torch operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backend.kernels.tiles import INTERPRETED
from backend.ops import make_ops
from scheduler.errors import ConfigError
from tests.backend.families import Sequences, ours, random_tokens, reference

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="the reference runs on the CPU, and so must the kernels")

LENGTHS = (12, 1, 9)
STEPS: tuple[tuple[dict[int, int], int | None], ...] = (({0: 7, 1: 1}, None), ({0: 1, 2: 5}, 9), ({2: 3, 0: 4}, None))


def flat_logits(family: str, ops: str) -> list[torch.Tensor]:
    """Chunks, decodes and graph padding mixed; logits after every token."""
    sequences = Sequences(ours(reference(family), ops=ops), random_tokens(*LENGTHS))
    found = [sequences.step(scheduled, padded_to=padded_to) for scheduled, padded_to in STEPS]
    return [logits for step in found for logits in step.values()]


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_a_flat_row_gives_the_same_logits(family: str) -> None:
    for ours_, theirs in zip(flat_logits(family, "triton"), flat_logits(family, "torch"), strict=True):
        torch.testing.assert_close(ours_, theirs, rtol=1e-4, atol=1e-4)


def rectangle_logits(ops: str) -> list[torch.Tensor]:
    sequences = Sequences(ours(reference("llama3"), ops=ops), random_tokens(5, 3))
    first = sequences.rectangle({0: 4, 1: 2}, {1: 2})
    second = sequences.rectangle({0: 1, 1: 1}, {1: 2})
    return [*first.values(), *second.values()]


def test_a_rectangle_gives_the_same_logits() -> None:
    for ours_, theirs in zip(rectangle_logits("triton"), rectangle_logits("torch"), strict=True):
        torch.testing.assert_close(ours_, theirs, rtol=1e-4, atol=1e-4)


def test_a_float64_model_is_refused() -> None:
    model: Any = reference("llama3", torch.float64)
    with pytest.raises(ConfigError, match="dtype float64 needs ops 'torch'"):
        ours(model, torch.float64, ops="triton")


def test_the_operations_are_those_of_the_protocol() -> None:
    torch_ops, triton_ops = make_ops("torch"), make_ops("triton")
    public = {name for name in dir(torch_ops) if not name.startswith("_")}
    assert public <= {name for name in dir(triton_ops) if not name.startswith("_")}
