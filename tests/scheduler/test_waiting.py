"""The waiting queues: first come first served, and by priority."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import Request
from scheduler.waiting import FcfsQueue, PriorityQueue, WaitingQueue, urgency


def requests(*priorities: int) -> list[Request]:
    made = [Request(index, 1, 1, priority=priority, arrival_s=0.0) for index, priority in enumerate(priorities)]
    for index, request in enumerate(made):
        request.index = index
    return made


def order(queue: WaitingQueue) -> list[object]:
    return [request.request_id for request in queue]


def test_first_come_first_served() -> None:
    queue = FcfsQueue()
    for request in requests(3, 1, 2):
        queue.push(request)
    assert order(queue) == [0, 1, 2]
    assert (queue.head().request_id, queue.pop().request_id, len(queue)) == (0, 0, 2)


def test_preempted_requests_go_to_the_front_the_last_one_first() -> None:
    queue, (a, b, c) = FcfsQueue(), requests(0, 0, 0)
    queue.push(a)
    queue.push_preempted(b)
    queue.push_preempted(c)
    assert order(queue) == [2, 1, 0]


def test_by_priority_then_arrival_then_order_of_adding() -> None:
    queue, made = PriorityQueue(), requests(1, 0, 1, 0)
    made[0].arrival_s = 5.0
    for request in reversed(made):
        queue.push(request)
    assert order(queue) == [1, 3, 2, 0]
    assert [queue.pop().request_id for _ in range(4)] == [1, 3, 2, 0]


def test_a_preempted_request_goes_to_the_place_of_its_priority() -> None:
    queue, (a, b, c) = PriorityQueue(), requests(1, 2, 3)
    queue.push(a)
    queue.push(c)
    queue.push_preempted(b)
    assert order(queue) == [0, 1, 2]


@pytest.mark.parametrize("kind", [FcfsQueue, PriorityQueue])
def test_only_a_queued_request_can_be_taken_out(kind: type[WaitingQueue]) -> None:
    queue, (a, b) = kind(), requests(0, 0)
    queue.push(a)
    with pytest.raises(ValueError, match="not in"):
        queue.remove(b)
    queue.remove(a)
    assert len(queue) == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(priorities=st.lists(st.integers(0, 4), min_size=1, max_size=30), gone=st.sets(st.integers(0, 29)))
def test_the_most_urgent_comes_first_whoever_leaves(priorities: list[int], gone: set[int]) -> None:
    queue, made = PriorityQueue(), requests(*priorities)
    for request in made:
        queue.push(request)
    for request in made:
        if request.index in gone:
            queue.remove(request)
    left = sorted((r for r in made if r.index not in gone), key=urgency)
    assert order(queue) == [r.request_id for r in left]
    assert [queue.pop() for _ in left] == left
