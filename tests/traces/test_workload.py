from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError, InputError
from traces.workload import Workload, cut, take_ragged


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def small(**columns: object) -> Workload:
    base = {
        "arrival_s": np.array([0.0, 0.5, 0.5, 2.0]),
        "prompt_tokens": ints(10, 20, 30, 40),
        "output_tokens": ints(1, 2, 3, 4),
    }
    return Workload(**{**base, **columns})  # type: ignore[arg-type] # columns under test


def hashed() -> Workload:
    return small(
        prompt_tokens=ints(32, 40, 16, 32),
        hash_ids=ints(7, 8, 7, 8, 9, 5, 7, 9),
        hash_offsets=ints(0, 2, 5, 6, 8),
        hash_block=16,
    )


def test_lengths_alone_end_by_length() -> None:
    request = small().request(2)
    assert (request.request_id, request.num_prompt_tokens, request.max_tokens) == (2, 30, 3)
    assert (request.ignore_eos, request.eos_at, request.arrival_s, request.tokens) == (True, None, 0.5, None)


def test_a_higher_limit_ends_by_eos_at_the_recorded_output() -> None:
    requests = list(small(max_tokens=ints(1, 8, 3, 9), priority=ints(0, 1, 2, 3)).requests())
    assert [(r.max_tokens, r.ignore_eos, r.eos_at) for r in requests] == [
        (1, True, None), (8, False, 2), (3, True, None), (9, False, 4),
    ]  # fmt: skip
    assert [r.priority for r in requests] == [0, 1, 2, 3]


def test_given_ids_are_plain_python_values() -> None:
    assert [type(r.request_id) for r in small(request_ids=np.array(list("abcd"))).requests()] == [str] * 4
    assert small(request_ids=ints(9, 8, 7, 6)).request(0).request_id == 9


RECORDED_DIGEST = "77ade5c8a273712ee8acd1426523e474fd5c6d07b0151aaeabc77dbd29b5e1d1"


def test_the_digest_is_of_the_content_and_fixed_across_machines() -> None:
    assert small().digest() == small(name="other").digest() == RECORDED_DIGEST
    changed = [small(priority=ints(0, 0, 0, 0)), small(output_tokens=ints(1, 2, 3, 5)), hashed(), small().head(3)]
    assert len({w.digest() for w in [small(), *changed]}) == 5


def test_a_million_requests_are_arrays_only() -> None:
    n = 1_000_000
    lengths = np.full(n, 100, dtype=np.int64)
    workload = Workload(np.arange(n) / 10, lengths, lengths)
    assert sum(getattr(workload, name).nbytes for name in ("arrival_s", "prompt_tokens", "output_tokens")) == 24 * n
    assert workload.request(n - 1).arrival_s == (n - 1) / 10


def test_columns_cannot_be_changed_behind_the_digest() -> None:
    with pytest.raises(ValueError, match="read-only"):
        small().arrival_s[0] = 5


@pytest.mark.parametrize(
    "columns",
    [
        {"arrival_s": np.array([0.0, 1.0, 0.5, 2.0])},
        {"prompt_tokens": ints(1, 2, 3)},
        {"output_tokens": ints(1, 0, 1, 1)},
        {"max_tokens": ints(1, 1, 3, 4)},
        {"hash_ids": ints(1)},
    ],
)
def test_columns_that_break_the_contract_fail_loudly(columns: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        small(**columns)


def test_parts_keep_times_and_contents() -> None:
    part = hashed().slice(1, 3)
    assert part.hash_ids is not None
    assert part.hash_offsets is not None
    assert (part.arrival_s.tolist(), part.hash_ids.tolist(), part.hash_offsets.tolist()) == (
        [0.5, 0.5], [7, 8, 9, 5], [0, 3, 4],
    )  # fmt: skip
    assert hashed().head(99).digest() == hashed().digest()
    with pytest.raises(ConfigError, match="requests is 0"):
        small().head(0)


def test_a_sample_is_a_subset_in_order_and_seeded() -> None:
    workload = Workload(np.arange(100.0), np.arange(1, 101), np.arange(1, 101))
    drawn = workload.sample(10, seed=3)
    assert drawn.digest() == workload.sample(10, seed=3).digest() != workload.sample(10, seed=4).digest()
    assert len(set(drawn.prompt_tokens.tolist())) == 10
    assert np.array_equal(drawn.arrival_s + 1, drawn.prompt_tokens)
    with pytest.raises(ConfigError, match="expected 1 to 100"):
        workload.sample(101)


def test_a_rate_factor_divides_times() -> None:
    assert small().scaled_rate(4).arrival_s.tolist() == [0, 0.125, 0.125, 0.5]
    assert small().rate_per_s == 1.5
    assert small(arrival_s=np.zeros(4)).rate_per_s is None
    with pytest.raises(ConfigError, match="rate factor is nan"):
        small().scaled_rate(float("nan"))


def test_a_span_starts_at_its_own_zero_and_leaves_out_its_end() -> None:
    assert cut(small(), (0.5, 2.0)).arrival_s.tolist() == [0, 0]
    with pytest.raises(InputError, match="no request arrives between 3 and 4 s"):
        cut(small(), (3, 4))
    with pytest.raises(ConfigError, match="expected 0 <= start < end"):
        cut(small(), (4, 3))


def test_prefix_share_counts_leading_whole_units_that_were_filled_before() -> None:
    # request 1 repeats two units of 16, request 2 none, request 3 one: unit 9 was filled only in part before
    assert hashed().prefix_share() == (32 + 0 + 16) / 120
    assert small().prefix_share() is None


def test_stats_hold_what_the_columns_say() -> None:
    stats = small().stats()
    assert stats["prompt_tokens"] == pytest.approx({
        "mean": 25, "p50": 25, "p90": 37, "p95": 38.5, "p99": 39.7, "total": 100, "min": 10, "max": 40,
    })  # fmt: skip
    assert (stats["requests"], stats["max_sequence_tokens"], stats["first_arrival_s"]) == (4, 44, 0)
    gaps = np.array([0.5, 0, 1.5])
    assert stats["interarrival_cv"] == pytest.approx(gaps.std() / gaps.mean())


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6), st.data())
def test_taking_ragged_rows_is_taking_lists(lists: list[list[int]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=6).map(sorted))
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in lists])]).astype(np.int64)
    values = np.array([v for part in lists for v in part], dtype=np.int64)
    taken, at = take_ragged(values, offsets, np.array(rows, dtype=np.int64))
    assert [taken[a:b].tolist() for a, b in pairwise(at)] == [lists[row] for row in rows]


def test_the_room_offers_its_main_names_lazily() -> None:
    import traces

    assert traces.Workload is Workload
    assert traces.resolve_workload("default", requests=1).name == "default"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = traces.nothing
