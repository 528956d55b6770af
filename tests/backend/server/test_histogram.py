"""Histograms count as Prometheus's own do."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as TheirHistogram

from backend.server.histogram import FIRST_TOKEN_S, REQUEST_S, STEP_S, STEP_TOKENS, TOKEN_S, Histogram, token_counts


@given(st.lists(st.floats(0, 100) | st.sampled_from(TOKEN_S)))
def test_buckets_and_sum_are_prometheus_s(values: list[float]) -> None:
    ours, theirs = Histogram(TOKEN_S), TheirHistogram("x", "x", registry=CollectorRegistry(), buckets=TOKEN_S)
    ours.add_all(values)
    for value in values:
        theirs.observe(value)
    samples = {s.labels.get("le", s.name): s.value for s in next(iter(theirs.collect())).samples}
    assert {bound: samples[bound] for bound, _ in ours.cumulative()} == dict(ours.cumulative())
    assert math.isclose(ours.total, samples["x_sum"], abs_tol=1e-9)


@given(st.lists(st.floats(0, 1)))
def test_one_by_one_is_all_at_once(values: list[float]) -> None:
    one, other = Histogram(STEP_S), Histogram(STEP_S)
    one.add_all(values)
    for value in values:
        other.add(value)
    assert one.cumulative() == other.cumulative()


def test_bounds_rise() -> None:
    for bounds in (REQUEST_S, FIRST_TOKEN_S, TOKEN_S, STEP_TOKENS, STEP_S, token_counts(8192)):
        assert list(bounds) == sorted(set(bounds))
    assert token_counts(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_counts(99) == (1, 2, 5, 10, 20, 50)
