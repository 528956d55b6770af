from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.tokens import TokenSource, _permute, unit_tokens
from traces.workload import Workload


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def source(covers_output: bool = False, block: int = 16) -> TokenSource:
    return TokenSource(
        ints(40, 40, 20), ints(8, 8, 8), ints(1, 2, 3, 1, 2, 4, 1), ints(0, 3, 6, 7), block, covers_output=covers_output
    )


def test_equal_ids_give_equal_runs_and_others_differ_everywhere() -> None:
    a, b, c = (source().script(i) for i in range(3))
    assert np.array_equal(a[:32], b[:32])
    assert np.array_equal(a[:16], c[:16])
    assert not (a[32:] == b[32:]).any()


def test_outputs_and_unhashed_tails_belong_to_their_request_alone() -> None:
    scripts = [source().script(i) for i in range(3)]
    own = np.concatenate([scripts[0][40:], scripts[1][40:], scripts[2][16:]])
    assert len(set(own.tolist())) == len(own)
    shared = np.concatenate([s[:16] for s in scripts])
    assert not set(own.tolist()) & set(shared.tolist())


def test_a_partial_last_unit_is_the_start_of_the_whole_one() -> None:
    script = source().script(0)
    assert np.array_equal(script[32:40], unit_tokens(ints(3), 16)[:8])


def test_ids_over_the_sequence_give_outputs_their_content() -> None:
    script = source(covers_output=True).script(0)
    assert np.array_equal(script, unit_tokens(ints(1, 2, 3), 16)[:48])


def test_a_next_turn_contains_the_turn_before() -> None:
    first, second = ints(1, 2, 3), ints(1, 2, 3, 4, 5)
    turns = TokenSource(
        ints(20, 50), ints(17, 20), np.concatenate([first, second]), ints(0, 3, 8), 16, covers_output=True
    )
    assert np.array_equal(turns.script(1)[:37], turns.script(0))


def test_tokens_are_small_ints_and_fixed_across_machines() -> None:
    tokens = unit_tokens(ints(0, 1, 2**40), 4)  # the last one past 30 bits
    assert tokens.dtype == np.int32
    assert tokens.min() >= 0
    # recorded once: a change here changes every recorded prefix hit
    assert tokens.tolist() == RECORDED


RECORDED = [
    0,
    749960602,
    719889746,
    794379979,
    146534513,
    192374789,
    808761108,
    450578862,
    414536197,
    524779869,
    403297663,
    605179796,
]


def test_distinct_pairs_give_distinct_tokens_below_two_to_the_thirty() -> None:
    tokens = unit_tokens(np.arange(200_000), 8)
    assert len(np.unique(tokens)) == len(tokens)


@given(st.lists(st.integers(0, 2**30 - 1), unique=True, max_size=50))
def test_the_mixing_is_a_permutation_of_30_bits(keys: list[int]) -> None:
    mixed = _permute(np.array(keys, dtype=np.uint32)).tolist()
    assert len(set(mixed)) == len(keys)
    assert all(0 <= token < 2**30 for token in mixed)


@given(st.lists(st.integers(-(2**62), 2**62), unique=True, min_size=2, max_size=20))
def test_huge_or_negative_ids_give_different_runs(ids: list[int]) -> None:
    counts = np.arange(len(ids) + 1)
    lengths = np.full(len(ids), 16)
    made = TokenSource(lengths, np.ones_like(lengths), np.array(ids), counts, 16, covers_output=False)
    runs = [tuple(made.script(i)[:16].tolist()) for i in range(len(ids))]
    assert len(set(runs)) == len(ids)
    assert min(min(run) for run in runs) >= 0


def test_contents_are_asked_only_of_workloads_that_have_them() -> None:
    workload = Workload(np.zeros(1), ints(4), ints(4))
    with pytest.raises(LookupError, match="lengths only"):
        workload.script(0)
