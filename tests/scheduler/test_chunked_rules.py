"""Rules of `chunked` that vLLM's recorded decisions do not exercise, step by step as worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import WAIT_REASONS, FinishReason, Request, RequestRefused, Scheduler, SchedulerConfig

from .harness import Ask, Content, Run

BOTH = pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])


def rows(run: Run) -> list[list[tuple[int, int, int]]]:
    """Per step: request, tokens before, tokens scheduled."""
    return [[(row.request, row.computed, row.scheduled) for row in step.rows] for step in run.steps]


def reasons(run: Run) -> list[str]:
    return [WAIT_REASONS[step.plan.wait_reason] for step in run.steps]


def hits(run: Run) -> list[int]:
    """Tokens that each request found in the prefix cache when it was first admitted."""
    return [request.num_cached_tokens for request in run.requests]


def tokens_of(run: Run, request: int) -> list[tuple[int, int]]:
    """A request's rows: tokens before, tokens scheduled."""
    return [(row.computed, row.scheduled) for step in run.steps for row in step.rows if row.request == request]


# Budget and priority


@BOTH
def test_a_scheduled_victim_gives_its_budget_back_to_those_behind_the_requester(plain: bool) -> None:
    config = SchedulerConfig(
        scheduling_policy="priority", max_num_batched_tokens=5, long_prefill_token_threshold=3, block_size=2,
        num_blocks=13,
    )  # fmt: skip
    asks = [Ask(2, 8, priority=9), Ask(16, 1, priority=1, arrive=1), Ask(8, 1, priority=2, arrive=1)]
    run = Run(config, asks, plain=plain).finish()
    assert rows(run)[:5] == [
        [(0, 0, 2)],
        [(0, 2, 1), (1, 0, 3), (2, 0, 1)],
        [(0, 3, 1), (1, 3, 3), (2, 1, 1)],
        [(0, 4, 1), (1, 6, 3), (2, 2, 1)],
        [(0, 5, 1), (1, 9, 3), (2, 3, 1)],
    ]
    # 12 blocks: request 0 takes the last one, request 1 wants two more: request 0 goes, after it was scheduled
    assert rows(run)[5] == [(1, 12, 3), (2, 4, 2)]
    assert [request.request_id for request in run.steps[5].plan.preempted] == [0]


@BOTH
def test_what_a_victim_gives_back_does_not_go_to_the_requester(plain: bool) -> None:
    """vLLM fixes how much the requester takes before it looks for blocks."""
    config = SchedulerConfig(scheduling_policy="priority", max_num_batched_tokens=4, block_size=2, num_blocks=11)
    asks = [Ask(2, 8, priority=9), Ask(16, 1, priority=1, arrive=1)]
    run = Run(config, asks, plain=plain).finish()
    assert rows(run)[4] == [(0, 5, 1), (1, 9, 3)]
    assert rows(run)[5] == [(1, 12, 3)], "3 tokens of budget were left when request 1 asked for its blocks"
    assert [request.request_id for request in run.steps[5].plan.preempted] == [0]


@BOTH
def test_a_requester_that_is_the_least_urgent_preempts_itself_and_the_next_goes_on(plain: bool) -> None:
    config = SchedulerConfig(scheduling_policy="priority", block_size=2, num_blocks=4)
    asks = [Ask(2, 4, priority=9), Ask(2, 3, priority=1)]
    run = Run(config, asks, plain=plain).finish()
    # priority 1 is admitted first; at 2 tokens each wants a block and only one is left: request 0 gives way
    assert rows(run)[:2] == [[(1, 0, 2), (0, 0, 2)], [(1, 2, 1)]]
    assert [[r.request_id for r in step.plan.preempted] for step in run.steps][:2] == [[], [0]]
    assert run.ends[0].outputs == 4


@BOTH
def test_the_victims_blocks_that_were_never_computed_are_unpublished(plain: bool) -> None:
    config = SchedulerConfig(
        scheduling_policy="priority", max_num_batched_tokens=4, long_prefill_token_threshold=2, block_size=4,
        num_blocks=5,
    )  # fmt: skip
    asks = [Ask(13, 1, priority=5), Ask(3, 3, priority=0, arrive=1)]
    run = Run(config, asks, content="tokens", plain=plain, physical=True)
    for _ in range(4):
        run.step()
    assert rows(run) == [[(0, 0, 4)], [(0, 4, 2), (1, 0, 2)], [(0, 6, 2), (1, 2, 1)], [(0, 8, 2), (1, 3, 1)]]
    run.step()  # request 0 takes 10 and 11, which fills and publishes its third block; then request 1 wants a block
    assert rows(run)[-1] == [(1, 4, 1)]
    assert run.steps[-1].plan.blocks_cached == 2
    assert run.steps[-1].plan.decode_tokens == run.steps[-1].plan.computed_tokens == 1
    run.finish()
    assert run.cached[0] == 8, "the two blocks that were computed are hit when it comes back"


# Chunking off


def test_with_chunking_off_a_prompt_that_does_not_fit_whole_stops_admission() -> None:
    config = SchedulerConfig(enable_chunked_prefill=False, max_num_batched_tokens=8)
    run = Run(config, [Ask(5, 1), Ask(4, 1), Ask(1, 1)]).finish()
    assert rows(run) == [[(0, 0, 5)], [(1, 0, 4), (2, 0, 1)]]
    assert reasons(run) == ["tokens", "none"]


def test_with_chunking_off_a_threshold_splits_prompts_all_the_same() -> None:
    config = SchedulerConfig(
        enable_chunked_prefill=False, max_num_batched_tokens=5, long_prefill_token_threshold=3, max_model_len=64
    )
    run = Run(config, [Ask(5, 1), Ask(5, 1)]).finish()
    assert rows(run) == [[(0, 0, 3)], [(0, 3, 2), (1, 0, 3)], [(1, 3, 2)]]


def test_the_threshold_does_not_bind_a_request_that_is_alone() -> None:
    run = Run(SchedulerConfig(long_prefill_token_threshold=3), [Ask(10, 2)]).finish()
    assert rows(run) == [[(0, 0, 10)], [(0, 10, 1)]]


@BOTH
def test_with_chunking_off_a_preempted_request_that_outgrew_the_budget_is_recomputed_in_chunks(plain: bool) -> None:
    config = SchedulerConfig(
        enable_chunked_prefill=False, max_num_batched_tokens=8, block_size=1, num_blocks=21, enable_prefix_caching=False
    )
    run = Run(config, [Ask(6, 12), Ask(6, 12)], plain=plain).finish()
    assert run.requests[1].num_preemptions == 1
    again = [row for row in tokens_of(run, 1) if row[1] > 1]
    assert again == [(0, 6), (0, 8), (8, 2)]
    assert [run.ends[index].outputs for index in (0, 1)] == [12, 12]


@BOTH
def test_with_chunking_off_what_could_be_computed_whole_later_is_not_split_now(plain: bool) -> None:
    """vLLM compares what is left of the request (hits and threshold taken off) with the budget, not all its tokens."""
    config = SchedulerConfig(
        enable_chunked_prefill=False, scheduling_policy="priority", max_num_batched_tokens=4, block_size=2,
        num_blocks=7, long_prefill_token_threshold=3, enable_prefix_caching=False,
    )  # fmt: skip
    asks = [
        Ask(2, 7),
        Ask(4, 10, priority=5),  # preempted at 7 tokens, more than the budget; but its threshold of 3 is not
        Ask(1, 2, priority=1, arrive=7),
        Ask(1, 2, priority=1, arrive=7),
    ]
    run = Run(config, asks, plain=plain).finish()
    assert [r.request_id for r in run.steps[5].plan.preempted] == [1]
    assert rows(run)[7] == [(2, 0, 1), (3, 0, 1)], "2 tokens of budget are left, request 1 would take 3"


# Prefix cache


def test_a_fully_cached_prompt_recomputes_its_last_block() -> None:
    asks = [Ask(8, 1, shared=8), Ask(8, 1, shared=8, arrive=1), Ask(9, 1, shared=8, arrive=2)]
    run = Run(SchedulerConfig(block_size=4), asks, content="script").finish()
    assert rows(run) == [[(0, 0, 8)], [(1, 4, 4)], [(2, 8, 1)]]
    assert [step.plan.cached_tokens for step in run.steps] == [0, 4, 8]


def test_blocks_published_in_a_step_are_hit_in_the_same_step() -> None:
    asks = [Ask(9, 1, shared=8), Ask(9, 1, shared=8)]
    run = Run(SchedulerConfig(block_size=4), asks, content="script").finish()
    assert rows(run) == [[(0, 0, 9), (1, 8, 1)]]
    assert run.steps[0].plan.blocks_used == 4


def test_of_two_blocks_with_the_same_content_the_first_published_is_hit() -> None:
    asks = [Ask(8, 9, shared=8), Ask(8, 9, shared=8, arrive=1), Ask(9, 2, shared=8, arrive=2)]
    run = Run(SchedulerConfig(block_size=4), asks, content="script")
    for _ in range(3):
        run.step()
    first, second, third = (run.requests[index].blocks for index in range(3))
    assert first[0] == second[0] == third[0]
    assert first[1] != second[1], "request 1 computed its last block itself"
    assert third[1] == first[1]


def test_the_second_twin_is_hit_when_the_first_is_gone() -> None:
    asks = [Ask(8, 1, shared=8), Ask(8, 9, shared=8, arrive=1), Ask(40, 1, arrive=2), Ask(9, 1, shared=8, arrive=3)]
    run = Run(SchedulerConfig(block_size=4, num_blocks=14), asks, content="script")
    while run.tick < 4:
        run.step()
    # request 0 has ended and request 2, in need of all blocks, took its twin of block 1
    assert run.requests[3].num_cached_tokens == 8
    assert run.requests[1].blocks[1] in next(ids for r, _, ids in run.steps[3].plan.block_grants() if r.request_id == 3)


def test_a_shared_prefix_is_hit_only_under_the_same_salt() -> None:
    asks = [Ask(9, 1, shared=8, salt=salt, arrive=at) for at, salt in enumerate(["", "x", "", "x", "y"])]
    run = Run(SchedulerConfig(block_size=4), asks, content="script").finish()
    assert hits(run) == [0, 0, 8, 8, 0]


@pytest.mark.parametrize("content", ["script", "tokens"])
def test_outputs_are_hit_by_the_next_turn(content: Content) -> None:
    asks = [Ask(4, 6, shared=20), Ask(12, 1, shared=20, arrive=7)]
    run = Run(SchedulerConfig(block_size=4), asks, content=content).finish()
    assert hits(run) == [0, 8]


def test_the_last_output_was_never_computed_and_is_not_hit() -> None:
    asks = [Ask(4, 4, shared=20), Ask(12, 1, shared=20, arrive=7)]  # 8 tokens known, 7 computed
    run = Run(SchedulerConfig(block_size=4), asks, content="tokens").finish()
    assert hits(run) == [0, 4]


def test_prompts_without_outputs_known_are_cached_and_never_guessed_at() -> None:
    """Prompt contents alone (no script, no sampled tokens): the prompt's blocks are shared, the outputs' are not."""
    scheduler = Scheduler(SchedulerConfig(block_size=4))
    for name in ("first", "second"):
        request = Request(name, [11, 12, 13, 14, 15], 20)
        scheduler.add(request)
        while scheduler.has_work:
            scheduler.update(scheduler.schedule())
            scheduler.check_integrity()
    assert request.num_cached_tokens == 4
    assert scheduler.kv.pool.num_cached == 1


def test_freed_blocks_are_evicted_from_the_end_of_the_sequence_first() -> None:
    asks = [
        Ask(12, 1, shared=12),  # 3 hashed blocks, all cached after its end; 3 of the pool are unhashed
        Ask(16, 1, arrive=1),  # takes the 3 unhashed ones, and evicts one
        Ask(13, 1, shared=13, arrive=2),
    ]
    run = Run(SchedulerConfig(block_size=4, num_blocks=7), asks, content="script", physical=True).finish()
    assert run.requests[2].num_cached_tokens == 8


def test_a_hit_makes_a_block_the_most_recently_used() -> None:
    asks = [
        Ask(5, 1, shared=4, group=0),
        Ask(5, 1, shared=4, group=1, arrive=1),
        Ask(5, 1, shared=4, group=0, arrive=2),  # uses the older block again
        Ask(14, 1, arrive=3),  # 4 blocks of 5: all but one hashed block go
        Ask(5, 1, shared=4, group=0, arrive=4),
        Ask(5, 1, shared=4, group=1, arrive=5),
    ]
    run = Run(SchedulerConfig(block_size=4, num_blocks=6), asks, content="script", physical=True).finish()
    assert hits(run) == [0, 0, 4, 0, 4, 0]


def test_hits_that_lie_idle_count_as_blocks_to_be_taken() -> None:
    asks = [Ask(8, 1, shared=8), Ask(5, 9, arrive=1), Ask(13, 1, shared=8, arrive=1)]
    run = Run(SchedulerConfig(block_size=4, num_blocks=7), asks, content="script")
    for _ in range(2):
        run.step()
    # 6 blocks: 2 cached; request 1 takes 2; request 2 needs 4, of which 2 are hits that lie idle: 4 are free
    assert [r.request_id for r in run.steps[1].plan.admitted] == [1, 2]
    tight = Run(SchedulerConfig(block_size=4, num_blocks=6), asks, content="script")
    for _ in range(2):
        tight.step()
    assert [r.request_id for r in tight.steps[1].plan.admitted] == [1]
    assert WAIT_REASONS[tight.steps[1].plan.wait_reason] == "blocks"


# Admission and memory


def test_the_whole_sequence_must_fit_though_only_a_chunk_is_taken() -> None:
    config = SchedulerConfig(max_num_batched_tokens=4, block_size=4, num_blocks=7)
    run = Run(config, [Ask(8, 1), Ask(20, 1)])
    run.step()
    run.step()
    run.step()
    assert rows(run) == [[(0, 0, 4)], [(0, 4, 4)], [(1, 0, 4)]]
    assert run.steps[2].plan.blocks_used == 1, "one chunk's block, though 5 had to be free"
    assert reasons(run)[0] == "tokens"
    waiting = Run(SchedulerConfig(block_size=4, num_blocks=7), [Ask(8, 2), Ask(20, 1)]).finish()
    assert reasons(waiting) == ["blocks", "blocks", "none"]


def test_the_watermark_keeps_blocks_free_unless_all_is_idle() -> None:
    config = SchedulerConfig(watermark=0.5, block_size=4, num_blocks=11)
    run = Run(config, [Ask(32, 2), Ask(4, 1)]).finish()
    assert rows(run) == [[(0, 0, 32)], [(0, 32, 1)], [(1, 0, 4)]]
    assert reasons(run) == ["blocks", "blocks", "none"]
    roomy = Run(config, [Ask(12, 2), Ask(8, 1), Ask(1, 1)]).finish()
    assert rows(roomy)[0] == [(0, 0, 12), (1, 0, 8)], "3 + 2 taken, 5 kept"


def test_the_whole_sequence_of_a_request_that_comes_back_includes_its_outputs() -> None:
    config = SchedulerConfig(block_size=2, num_blocks=7, enable_prefix_caching=False)
    run = Run(config, [Ask(4, 5), Ask(4, 5)]).finish()
    assert [len(step.plan.preempted) for step in run.steps].count(1) == 1
    back = [(row.computed, row.scheduled) for row in (r for s in run.steps for r in s.rows) if row.request == 1]
    victim = next(index for index, step in enumerate(run.steps) if step.plan.preempted)
    outputs = sum(row.request == 1 for step in run.steps[:victim] for row in step.rows)
    assert (0, 4 + outputs) in back
    again = next(step for step in run.steps if step.plan.recomputed_tokens)
    assert again.plan.recomputed_tokens == run.lost[1] == 3 + outputs
    assert again.plan.decode_tokens == 1, "its newest output is computed for the first time"


def test_a_request_ends_at_max_model_len() -> None:
    run = Run(SchedulerConfig(max_model_len=8), [Ask(5, 100)]).finish()
    assert tokens_of(run, 0) == [(0, 5), (5, 1), (6, 1)]
    assert run.ends[0].outputs == 3


@BOTH
def test_a_lone_request_that_outgrows_the_pool_ends_with_an_error(plain: bool) -> None:
    config = SchedulerConfig(block_size=4, num_blocks=3)
    run = Run(config, [Ask(6, 30)], plain=plain).finish()
    assert run.ends[0].reason is FinishReason.ERROR
    assert run.ends[0].outputs == 3, "8 positions hold 6 + 2 tokens, and the third output needs no place yet"
    assert run.scheduler.kv.pool.num_used == 0
    assert not run.scheduler.has_work


@BOTH
def test_an_error_lets_the_next_request_in_at_once(plain: bool) -> None:
    run = Run(SchedulerConfig(block_size=4, num_blocks=3), [Ask(6, 30), Ask(5, 1)], plain=plain).finish()
    assert [run.ends[index].reason for index in (0, 1)] == [FinishReason.ERROR, FinishReason.LENGTH]


def refusal(request: Request, **settings: Any) -> str:
    with pytest.raises(RequestRefused) as caught:
        Scheduler(SchedulerConfig(**settings)).add(request)
    return str(caught.value)


def test_a_prompt_that_can_never_fit_is_refused_with_what_would_let_it_in() -> None:
    assert "raise num_blocks to at least 5" in refusal(Request(0, 50, 5), num_blocks=3)
    assert "max_model_len to at least 65" in refusal(Request(0, 64, 5), max_model_len=64)
    assert "shorten it to 63" in refusal(Request(0, 64, 5), max_model_len=64)
    off = refusal(Request(0, 50, 5), max_num_batched_tokens=49, enable_chunked_prefill=False)
    assert "max_num_batched_tokens 49" in off
    reserved = refusal(Request(0, 10, 50), num_blocks=4, kv_memory="reserve-max-tokens")
    assert "raise num_blocks to at least 5" in reserved


def test_what_no_shorter_request_would_cure_is_not_said_to_be_cured_by_shortening() -> None:
    sentence = refusal(Request(0, 10, 5), num_blocks=4, max_model_len=64, kv_memory="reserve-max-model-len")
    assert "max_model_len" in sentence
    assert "shorten" not in sentence


def test_a_refused_request_leaves_nothing_behind() -> None:
    scheduler = Scheduler(SchedulerConfig(num_blocks=3))
    with pytest.raises(RequestRefused):
        scheduler.add(Request(0, 50, 5))
    assert not scheduler.has_work
    scheduler.add(Request(0, 5, 5))
    assert scheduler.schedule().arrived[0].num_prompt_tokens == 5


def test_a_prompt_that_fills_the_pool_is_served_when_its_answer_needs_no_room() -> None:
    run = Run(SchedulerConfig(block_size=4, num_blocks=3), [Ask(8, 1)]).finish()
    assert run.ends[0].reason is FinishReason.LENGTH


# The queue


def test_a_victim_goes_to_the_front_of_the_queue() -> None:
    config = SchedulerConfig(block_size=2, num_blocks=5, max_num_seqs=2)
    run = Run(config, [Ask(4, 3), Ask(4, 3), Ask(2, 1)]).finish()
    victim = next(step for step in run.steps if step.plan.preempted)
    assert victim.plan.waiting == 2
    order = [int(r.request_id) for step in run.steps for r in step.plan.admitted]
    assert order == [0, 1, 1, 2]


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    config = SchedulerConfig(block_size=2, num_blocks=5)
    run = Run(config, [Ask(4, 3), Ask(4, 3), Ask(1, 1, arrive=1)]).finish()
    for step in run.steps:
        assert not (step.plan.preempted and step.plan.admitted)
        if step.plan.preempted:
            assert WAIT_REASONS[step.plan.wait_reason] == "blocks"


def test_priority_serves_the_smallest_number_first_then_the_earliest() -> None:
    config = SchedulerConfig(scheduling_policy="priority", max_num_seqs=1)
    run = Run(config, [Ask(2, 1, priority=2), Ask(2, 1, priority=1), Ask(2, 1, priority=2), Ask(2, 1)]).finish()
    assert [row.request for step in run.steps for row in step.rows] == [3, 1, 0, 2]


def test_decodes_beyond_the_budget_wait_their_turn() -> None:
    config = SchedulerConfig(max_num_batched_tokens=2)
    run = Run(config, [Ask(1, 4), Ask(1, 4), Ask(1, 2)]).finish()
    assert rows(run)[:4] == [
        [(0, 0, 1), (1, 0, 1)],
        [(0, 1, 1), (1, 1, 1)],
        [(0, 2, 1), (1, 2, 1)],
        [(0, 3, 1), (1, 3, 1)],
    ]
    assert rows(run)[4:] == [[(2, 0, 1)], [(2, 1, 1)]]
    assert reasons(run)[:4] == ["tokens"] * 4
