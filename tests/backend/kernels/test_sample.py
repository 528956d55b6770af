"""Sampled tokens: greedy as argmax, drawn ones by the number of (seed, position) and the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend import philox
from backend.kernels import reference, sample
from tests.backend.kernels.cases import DEVICE, every_dtype, few, integers, random

seeds_and_positions = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=20
)


def draw(logits: Tensor, temperature: float, seeds: Tensor, positions: Tensor) -> Tensor:
    return sample.sample(logits, torch.full((len(logits),), temperature, device=DEVICE), seeds, positions)


def assert_drawn(logits: Tensor, temperature: Tensor, uniform: Tensor, tokens: Tensor) -> None:
    """Each token's interval of cumulative probability holds the number, up to float32's rounding."""
    cdf = reference.cumulative(logits, temperature)
    rows = torch.arange(len(tokens), device=DEVICE)
    probability = torch.softmax(logits.double() / temperature.double()[:, None], -1)[rows, tokens]
    upper = cdf[rows, tokens]
    assert (probability > 0).all()
    assert (uniform < upper + 1e-5).all()
    assert (uniform > upper - probability - 1e-5).all()


@few
@given(seeds_and_positions)
def test_the_noise_is_philox_of_seed_and_position(pairs: list[tuple[int, int]]) -> None:
    seeds, positions = zip(*pairs, strict=True)
    expected = philox.uniform(np.array(seeds).astype(np.uint64), np.array(positions, dtype=np.uint64))
    assert sample.uniform(integers(seeds), integers(positions)).tolist() == expected.tolist()


@every_dtype
def test_greedy_is_argmax(dtype: torch.dtype) -> None:
    logits = random(5, 300, dtype=dtype)
    assert torch.equal(sample.argmax(logits), logits.argmax(-1))


def test_greedy_takes_the_first_of_equals_also_across_blocks() -> None:
    logits = torch.zeros((2, 9000), device=DEVICE)
    logits[1, [4100, 8999, 4099]] = 3.0
    assert sample.argmax(logits).tolist() == [0, 4099]
    assert draw(logits, 0.0, integers([1, 2]), integers([3, 4])).tolist() == [0, 4099]


def test_logits_that_are_no_numbers_still_give_a_token_of_the_vocabulary() -> None:
    logits = torch.full((1, 50), torch.nan, device=DEVICE)
    assert 0 <= sample.argmax(logits).item() < 50


@few
@given(st.integers(2, 600), st.floats(0.1, 3.0), st.integers(0, 2**60))
def test_the_first_token_beyond_the_number_is_drawn(vocab: int, heat: float, seed: int) -> None:
    logits = random(4, vocab, seed=seed % 1000) * 3
    seeds, positions = integers([seed + row for row in range(4)]), integers([0, 1, 500, 2**31])
    temperature = torch.full((4,), heat, device=DEVICE)
    tokens = sample.sample(logits, temperature, seeds, positions)
    assert_drawn(logits, temperature, sample.uniform(seeds, positions), tokens)


def test_large_vocabularies_are_drawn_from_block_by_block() -> None:
    logits = random(6, 10_000)
    seeds, positions = integers(range(6)), integers([9] * 6)
    tokens = draw(logits, 1.0, seeds, positions)
    assert_drawn(logits, torch.ones(6, device=DEVICE), sample.uniform(seeds, positions), tokens)
    assert (
        tokens.tolist()
        == reference.sample(logits, torch.ones(6, device=DEVICE), sample.uniform(seeds, positions)).tolist()
    )


def test_filtered_tokens_are_never_drawn() -> None:
    logits = torch.full((16, 9000), -torch.inf, device=DEVICE)
    logits[:, [17, 5000]] = 1.0
    tokens = draw(logits, 0.7, integers(range(16)), integers([3] * 16)).tolist()
    assert set(tokens) == {17, 5000}
    assert 2 < tokens.count(17) < 14


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits, seeds, positions = random(4, 700), integers([5, 6, 7, 8]), integers([1, 2, 3, 4])
    together = draw(logits, 1.3, seeds, positions)
    for row in range(4):
        alone = draw(logits[row : row + 1], 1.3, seeds[row : row + 1], positions[row : row + 1])
        assert alone.item() == together[row].item()


def test_each_row_has_its_own_temperature() -> None:
    logits = random(3, 200)
    seeds, positions = integers([1, 2, 3]), integers([1, 1, 1])
    tokens = sample.sample(logits, torch.tensor([0.0, 1e-4, 50.0], device=DEVICE), seeds, positions)
    assert tokens[:2].tolist() == logits[:2].argmax(-1).tolist()
    cold = reference.sample(logits, torch.tensor([0.0, 1e-4, 50.0], device=DEVICE), sample.uniform(seeds, positions))
    assert tokens.tolist() == cold.tolist()


def test_frequencies_are_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2], device=DEVICE)
    tokens = draw(probabilities.log().repeat(100, 1), 1.0, integers([11] * 100), integers(range(100)))
    shares = torch.bincount(tokens.cpu(), minlength=4) / 100
    assert shares.tolist() == pytest.approx([0.5, 0.0, 0.3, 0.2], abs=0.15)
