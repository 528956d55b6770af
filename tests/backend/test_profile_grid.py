"""The design of a profile: every round fits its settings, and the rounds fill the space evenly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.profile_grid import Design, Limits, batches, documents, powers_of_two, spread
from backend.rounds import Ask, Round
from scheduler.config import SchedulerConfig

configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 300),
    max_num_batched_tokens=st.integers(1, 5000),
    max_model_len=st.integers(2, 3000),
    num_blocks=st.integers(3, 2000),
    block_size=st.sampled_from([1, 16, 32]),
    enable_prefix_caching=st.booleans(),
)


def requests_of(asked: Round) -> tuple[Ask, ...]:
    return (*asked.first, *asked.then)


def all_rounds(config: SchedulerConfig, layout: str) -> Iterator[tuple[Limits, Round, tuple[int, ...]]]:
    limits = Limits.of(config, layout)
    design = Design(limits)
    yield from ((limits, asked, design.documents) for asked in (*design.reading(), *design.rounds()))
    yield from ((limits, asked, ()) for asked in batches(limits))


@settings(max_examples=25)
@given(config=configs, layout=st.sampled_from(["ragged", "padded"]))
def test_every_request_of_a_design_fits_the_settings_it_was_made_for(config: SchedulerConfig, layout: str) -> None:
    for limits, asked, lengths in all_rounds(config, layout):
        assert 1 <= len(requests_of(asked)) <= config.max_num_seqs
        for ask in requests_of(asked):
            assert ask.fresh >= 1
            assert ask.output >= 1
            assert ask.history + ask.fresh + ask.output <= limits.length <= config.max_model_len
            assert ask.history == 0 or ask.history <= lengths[ask.document]


@settings(max_examples=10)
@given(config=configs)
def test_no_two_requests_of_a_round_share_a_document(config: SchedulerConfig) -> None:
    for _, asked, _ in all_rounds(config, "ragged"):
        used = [ask.document for ask in requests_of(asked) if ask.history]
        assert len(used) == len(set(used))


@given(config=configs)
def test_documents_fit_half_the_kv_cache_and_never_grow(config: SchedulerConfig) -> None:
    lengths = documents(Limits.of(config, "ragged"))
    assert sum(lengths) <= config.usable_blocks * config.block_size / 2
    assert list(lengths) == sorted(lengths, reverse=True)


def test_powers_of_two_end_with_the_most() -> None:
    assert powers_of_two(1) == [1]
    assert powers_of_two(8) == [1, 2, 4, 8]
    assert powers_of_two(48) == [1, 2, 4, 8, 16, 32, 48]


@given(count=st.integers(8, 200), dimensions=st.integers(1, 6), seed=st.integers(0, 1000))
def test_spread_points_leave_no_wide_gap_in_any_direction(count: int, dimensions: int, seed: int) -> None:
    points = spread(count, dimensions, seed)
    assert points.shape == (count, dimensions)
    assert ((points >= 0) & (points < 1)).all()
    for column in np.sort(points, axis=0).T:
        assert np.diff([0.0, *column, 1.0]).max() <= 2 / count
