from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.search import DOUBLINGS, RateSearch, fewest


@given(limit=st.floats(0.1, 100), start=st.floats(0.1, 100), precision=st.floats(0.001, 0.5))
def test_a_threshold_is_bracketed_to_the_precision(limit: float, start: float, precision: float) -> None:
    search = RateSearch(lambda rate: rate <= limit, start=start, precision=precision)
    assert search.best is not None
    assert search.wall is not None
    assert search.best <= limit < search.wall <= search.best * (1 + precision) * 1.00001  # rates have 6 digits
    assert not search.islands


@given(limit=st.floats(1, 50), precision=st.floats(0.01, 0.03), lower=st.floats(0.6, 0.87))
def test_a_hole_below_the_answer_is_found_and_lowers_it(limit: float, precision: float, lower: float) -> None:
    def passes(rate: float) -> bool:
        return rate <= limit and not lower * limit <= rate <= 0.95 * limit

    search = RateSearch(passes, start=1.0, precision=precision)
    assert search.best is not None
    assert search.best < lower * limit
    assert search.wall is not None
    assert search.wall <= 0.95 * limit


def test_rates_that_pass_above_the_answer_are_reported() -> None:
    search = RateSearch(lambda rate: rate <= 10 or 11 < rate < 12, start=1.0, precision=0.02)
    assert search.best is not None
    assert 9.8 < search.best <= 10
    assert search.islands
    assert all(11 < rate < 12 for rate in search.islands)


def test_no_rate_that_fails_leaves_no_wall() -> None:
    search = RateSearch(lambda rate: True, start=1.0, precision=0.1)
    assert search.wall is None
    assert search.best == 2.0**DOUBLINGS


def test_no_rate_that_passes_leaves_no_answer() -> None:
    search = RateSearch(lambda rate: False, start=1.0, precision=0.1)
    assert search.best is None
    assert min(search.tried) == pytest.approx(2.0**-DOUBLINGS, rel=1e-5)


def test_a_hopeless_search_goes_no_lower() -> None:
    search = RateSearch(lambda rate: False, start=1.0, precision=0.1, hopeless=lambda: True)
    assert min(search.tried) == 1.0


def test_a_server_that_wants_more_traffic_gets_no_answer_but_its_rates_are_reported() -> None:
    search = RateSearch(lambda rate: 3 < rate < 5, start=1.0, precision=0.1)
    assert search.best is None
    assert search.islands == [4.0]


def test_each_rate_is_asked_for_once() -> None:
    asked: list[float] = []

    def passes(rate: float) -> bool:
        asked.append(rate)
        return rate <= 3

    RateSearch(passes, start=1.0, precision=0.01)
    assert len(asked) == len(set(asked))


@given(least=st.integers(1, 200))
def test_the_fewest_servers_are_found(least: int) -> None:
    assert fewest(lambda number: number >= least, most=256) == least


def test_the_largest_number_is_tried_before_giving_up() -> None:
    assert fewest(lambda number: number >= 100, most=100) == 100
    assert fewest(lambda number: number >= 101, most=100) is None
