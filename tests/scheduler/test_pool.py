"""The block pool: a stack of unhashed blocks ahead of an LRU of hashed ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import Request
from scheduler.pool import NULL_BLOCK, BlockPool
from scheduler.prefix import hash_blocks


def digest(number: int) -> bytes:
    return bytes([number])


def test_blocks_go_out_from_1_upwards_and_the_null_block_never() -> None:
    pool = BlockPool(5)
    assert pool.allocate(2) == [1, 2]
    assert pool.allocate(2) == [3, 4]
    assert pool.num_free == 0
    assert NULL_BLOCK == 0


def test_of_unhashed_blocks_the_last_freed_goes_out_first() -> None:
    pool = BlockPool(5)
    pool.free(pool.allocate(3))
    assert pool.allocate(4) == [3, 2, 1, 4]


def test_hashed_blocks_go_out_last_and_the_least_recently_freed_of_them_first() -> None:
    pool = BlockPool(6)
    blocks = pool.allocate(3)
    for block in blocks[:2]:
        pool.publish(block, digest(block))
    pool.free(reversed(blocks))
    assert (pool.num_free, pool.num_cached, pool.num_used) == (5, 2, 0)
    assert pool.allocate(4) == [3, 4, 5, 2]
    assert pool.lookup([digest(1), digest(2)]) == [1], "block 2 lost its hash when it went out"


def test_a_hit_takes_its_block_out_of_the_free_queue() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.publish(block, digest(1))
    pool.free([block])
    assert pool.num_idle([block]) == 1
    pool.take_hits([block])
    assert (pool.num_idle([block]), pool.num_cached, pool.num_used) == (0, 0, 1)
    pool.check([[block]])


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.publish(block, digest(1))
    pool.take_hits([block])
    pool.take_hits([block])
    pool.check([[block]] * 3)
    for holders in (2, 1, 0):
        pool.free([block])
        assert pool.num_cached == (holders == 0)
        pool.check([[block]] * holders)


def test_lookups_end_at_the_first_unknown_block() -> None:
    pool = BlockPool(6)
    for block in pool.allocate(3):
        pool.publish(block, digest(block))
    assert pool.lookup([digest(1), digest(9), digest(3)]) == [1]
    assert pool.lookup([digest(9), digest(1)]) == []


def test_of_twins_the_first_published_answers_until_it_is_gone() -> None:
    pool = BlockPool(4)
    for block in pool.allocate(3):
        pool.publish(block, digest(7))
    assert pool.lookup([digest(7)]) == [1]
    pool.free([1])
    assert pool.lookup([digest(7)]) == [1]
    assert pool.allocate(1) == [1]
    assert pool.lookup([digest(7)]) == [2]
    pool.unpublish(2)
    assert pool.lookup([digest(7)]) == [3]


def test_an_unpublished_block_goes_to_the_unhashed_ones() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    for block in blocks:
        pool.publish(block, digest(block))
    pool.unpublish(2)
    pool.free(blocks)
    assert (pool.num_cached, pool.allocate(1)) == (1, [2])


@pytest.mark.parametrize("holders", [[[1, 2]], [[1], [1]], [[1, 9]], []])
def test_books_that_do_not_balance_are_found(holders: list[list[int]]) -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="block pool"):
        pool.check(holders)
    pool.check([[1]])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(moves=st.lists(st.tuples(st.sampled_from("apfh"), st.integers(1, 3)), max_size=60))
def test_the_books_balance_whatever_is_done(moves: list[tuple[str, int]]) -> None:
    pool, held, published = BlockPool(9), list[list[int]](), set[int]()
    for move, number in moves:
        if move == "a" and pool.num_free >= number:
            held.append(pool.allocate(number))
            published -= set(held[-1])
        elif move == "p" and held and held[-1][0] not in published:
            pool.publish(held[-1][0], digest(number))
            published.add(held[-1][0])
        elif move == "f" and held:
            pool.free(reversed(held.pop(number % len(held))))
        elif move == "h":
            hits = pool.lookup([digest(number)])
            pool.take_hits(hits)
            held += [hits] if hits else []
        pool.check(held)


# Prefix hashes


def test_equal_tokens_have_equal_hashes_only_at_equal_places_under_equal_salt() -> None:
    def hashes(tokens: list[int], salt: str = "") -> list[bytes]:
        return list(hash_blocks(Request(0, tokens, 1, cache_salt=salt), len(tokens) // 2, 2))

    first = hashes([1, 2, 1, 2])
    assert first[0] != first[1], "the parent counts"
    assert hashes([1, 2, 3, 4])[0] == first[0]
    assert hashes([9, 2, 1, 2])[1] != first[1]
    assert hashes([1, 2], salt="x")[0] != first[0]


def test_only_full_blocks_are_hashed_and_each_once() -> None:
    request = Request(0, [1, 2, 3, 4, 5], 1)
    one = list(hash_blocks(request, 1, 2))
    two = hash_blocks(request, 2, 2)
    assert two[:1] == one
    assert len(two) == len(request.block_hashes) == 2
    assert hash_blocks(request, 1, 2) == one
