"""Philox against the authors' known answers, and the numbers that sampling takes from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from backend.philox import philox, seed_word, uniform

# Random123's tests/kat_vectors, lines "philox4x32 10": counter, key, expected words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    assert philox(np.array(words(counter))[:, None], np.array(words(key))[:, None])[:, 0].tolist() == words(expected)


def test_many_counters_at_once_give_the_words_of_each() -> None:
    counters = np.array([words(counter) for counter, _, _ in KNOWN]).T
    keys = np.array([words(key) for _, key, _ in KNOWN]).T
    assert philox(counters, keys).T.tolist() == [words(expected) for _, _, expected in KNOWN]


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_the_uniform_number_is_the_first_word_of_the_seed_and_position(seed: int, position: int) -> None:
    expected = philox(np.array([[position], [0], [0], [0]]), np.array([[seed % 2**32], [seed >> 32]]))[0, 0]
    (number,) = uniform([seed], [position])
    assert number == int(expected >> np.uint64(8)) / 2**24
    assert number.dtype == np.float32
    assert 0 <= number < 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 100_000)), min_size=1, max_size=20))
def test_a_number_does_not_depend_on_its_neighbours(rows: list[tuple[int, int]]) -> None:
    seeds, positions = zip(*rows, strict=True)
    together = uniform(np.array(seeds, dtype=np.uint64), np.array(positions))
    alone = [uniform([seed], [position])[0] for seed, position in rows]
    assert together.tolist() == alone


def test_numbers_are_uniform_along_positions_and_along_seeds() -> None:
    along = np.arange(20_000)
    for numbers in (uniform(np.full(20_000, 7), along), uniform(along, np.full(20_000, 7))):
        assert stats.kstest(numbers, "uniform").pvalue > 1e-3


def test_negative_seeds_are_taken_as_twos_complement() -> None:
    assert seed_word(-1) == 2**64 - 1
    assert seed_word(5) == 5
