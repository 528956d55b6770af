from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.redraw import draws, resolve, turned
from traces.workload import Workload


def workload(gaps: list[float], hashes: bool = False) -> Workload:
    n = len(gaps)
    ids = {"hash_ids": np.arange(2 * n), "hash_offsets": np.arange(0, 2 * n + 1, 2), "hash_block": 16} if hashes else {}
    return Workload(np.cumsum(gaps), np.arange(n) + 17, np.arange(n) + 3, **ids)  # type: ignore[arg-type] # a union


@given(gaps=st.lists(st.floats(0, 10), min_size=2, max_size=20), data=st.data())
def test_turning_keeps_requests_and_gaps_but_for_the_seam(gaps: list[float], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(gaps) - 1))
    before = workload(gaps)
    after = turned(before, start)
    order = np.roll(np.arange(len(gaps)), -start)
    assert np.array_equal(after.prompt_tokens, before.prompt_tokens[order])
    assert np.array_equal(after.output_tokens, before.output_tokens[order])
    kept = np.diff(before.arrival_s)
    expected = np.concatenate([kept[start:], [kept.mean()], kept[: max(start - 1, 0)]]) if start else kept
    assert after.arrival_s[0] == 0
    assert np.allclose(np.diff(after.arrival_s), expected, atol=1e-7)


def test_turning_keeps_contents_with_their_requests() -> None:
    before = workload([1.0] * 5, hashes=True)
    after = turned(before, 2)
    for place in range(5):
        units = (len(before.script(0)) // 16) * 16
        assert np.array_equal(after.script(place)[:16], before.script((place + 2) % 5)[:16])
        assert units >= 16


def test_a_preset_is_drawn_anew_for_each_seed() -> None:
    first, second = draws("default", 2, seed=4, requests=20)
    assert first.digest() == resolve("default", seed=4, requests=20).digest()
    assert second.digest() == resolve("default", seed=5, requests=20).digest()


def test_a_given_workload_is_turned_after_the_first_seed() -> None:
    given_one = workload([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    drawn = draws(given_one, 4)
    assert drawn[0] is given_one
    assert len({one.digest() for one in drawn}) > 1
    for one in drawn[1:]:
        assert sorted(one.prompt_tokens.tolist()) == sorted(given_one.prompt_tokens.tolist())
    assert [one.digest() for one in draws(given_one, 4)] == [one.digest() for one in drawn]


def test_rate_and_requests_hold_for_a_given_workload_too() -> None:
    made = resolve(workload([1.0] * 10), requests=5, rate=4.0)
    assert len(made) == 5
    assert made.rate_per_s == pytest.approx(4.0)
