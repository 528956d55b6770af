"""`orca`, `prefill-first` and the padded layouts, step by step as worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import WAIT_REASONS, SchedulerConfig

from .harness import Ask, Run


def rows(run: Run) -> list[list[tuple[int, int, int]]]:
    """Per step: request, tokens before, tokens scheduled."""
    return [[(row.request, row.computed, row.scheduled) for row in step.rows] for step in run.steps]


def reasons(run: Run) -> list[str]:
    return [WAIT_REASONS[step.plan.wait_reason] for step in run.steps]


def test_orca_lets_whole_prompts_join_the_decodes() -> None:
    config = SchedulerConfig(policy="orca", max_num_batched_tokens=10)
    run = Run(config, [Ask(4, 3), Ask(5, 2), Ask(6, 1)]).finish()
    assert rows(run) == [
        [(0, 0, 4), (1, 0, 5)],
        [(0, 4, 1), (1, 5, 1), (2, 0, 6)],
        [(0, 5, 1)],
    ]
    assert reasons(run) == ["tokens", "none", "none"]


def test_orca_runs_a_prompt_that_does_not_fit_as_the_only_prefill_of_its_step() -> None:
    config = SchedulerConfig(policy="orca", max_num_batched_tokens=8)
    run = Run(config, [Ask(3, 4), Ask(20, 2), Ask(3, 1)]).finish()
    assert rows(run) == [
        [(0, 0, 3)],
        [(0, 3, 1), (1, 0, 20)],
        [(0, 4, 1), (1, 20, 1), (2, 0, 3)],
        [(0, 5, 1)],
    ]
    assert reasons(run)[:2] == ["tokens", "tokens"]


def test_prefill_first_is_all_prefill_or_all_decode() -> None:
    config = SchedulerConfig(policy="prefill-first", max_num_batched_tokens=10)
    run = Run(config, [Ask(4, 3), Ask(5, 2), Ask(6, 2), Ask(2, 2, arrive=3)]).finish()
    assert rows(run) == [
        [(0, 0, 4), (1, 0, 5)],
        [(2, 0, 6)],
        [(0, 4, 1), (1, 5, 1), (2, 6, 1)],
        [(3, 0, 2)],
        [(0, 5, 1), (3, 2, 1)],
    ]


def test_prefill_first_runs_a_prompt_over_the_budget_alone() -> None:
    config = SchedulerConfig(policy="prefill-first", max_num_batched_tokens=8)
    run = Run(config, [Ask(3, 2), Ask(20, 2), Ask(3, 1)]).finish()
    assert rows(run) == [[(0, 0, 3)], [(1, 0, 20)], [(2, 0, 3)], [(0, 3, 1), (1, 20, 1)]]
    assert reasons(run) == ["tokens", "tokens", "none", "none"]


def test_prefill_first_decodes_while_nobody_can_be_admitted() -> None:
    config = SchedulerConfig(policy="prefill-first", max_num_seqs=1)
    run = Run(config, [Ask(3, 3), Ask(3, 1)]).finish()
    assert rows(run) == [[(0, 0, 3)], [(0, 3, 1)], [(0, 4, 1)], [(1, 0, 3)]]
    assert reasons(run) == ["seqs", "seqs", "seqs", "none"]


@pytest.mark.parametrize("policy", ["orca", "prefill-first"])
def test_a_preempted_request_is_computed_anew_whole(policy: str) -> None:
    config = SchedulerConfig(policy=policy, block_size=2, num_blocks=6, max_num_batched_tokens=4)
    run = Run(config, [Ask(4, 4), Ask(2, 5)]).finish()
    victims = [request.request_id for step in run.steps for request in step.plan.preempted]
    assert victims
    assert set(victims) == {1}
    again = [step.plan.recomputed_tokens for step in run.steps if step.plan.recomputed_tokens]
    assert sum(again) == run.lost[1] > 0
    assert run.ends[1].outputs == 5


def test_a_joining_prompt_of_100_pads_693_tokens_of_8_rows() -> None:
    config = SchedulerConfig(policy="chunked", layout="padded")
    run = Run(config, [Ask(10, 5)] * 7 + [Ask(100, 2, arrive=1)]).finish()
    plan = run.steps[1].plan
    assert (plan.rows, plan.cols, plan.computed_tokens, plan.padding_prompt) == (8, 100, 800, 693)
    assert plan.logits_rows == 8
    assert plan.padding_context == 8 * 100 - (7 * 11 + 100)


def test_a_padded_rectangle_by_hand() -> None:
    config = SchedulerConfig(policy="chunked", layout="padded", max_num_batched_tokens=8)
    run = Run(config, [Ask(6, 3), Ask(5, 2)]).finish()
    names = ("rows", "cols", "computed_tokens", "padding_prompt", "context_tokens", "padding_context")
    assert [tuple(getattr(step.plan, name) for name in names) for step in run.steps] == [
        (2, 6, 12, 12 - 8, 6 + 2, 2 * 6 - 8),
        (2, 3, 6, 6 - 4, 7 + 5, 2 * 7 - 12),
        (2, 1, 2, 0, 8 + 6, 2 * 8 - 14),
    ]
    shape = run.steps[1].plan.shape
    # 3 columns that end at position 7: they attend to 5, 6 and 7 positions, in both rows
    assert (shape.prefill_tokens, shape.prefill_context, shape.prefill_pairs) == (6, 14, 2 * (5 + 6 + 7))
    new, context = shape.per_request()
    assert (new.tolist(), context.tolist()) == ([3, 3], [4, 4])
    last = run.steps[2].plan.shape
    assert (last.decode_tokens, last.decode_context, last.prefill_tokens) == (2, 16, 0)


def test_a_flat_row_is_padded_to_the_next_captured_size() -> None:
    config = SchedulerConfig(cudagraph_capture_sizes=(2, 4, 8))
    run = Run(config, [Ask(9, 2), Ask(2, 2, arrive=1), Ask(1, 1, arrive=1)]).finish()
    assert [(step.plan.computed_tokens, step.plan.padding_graph) for step in run.steps] == [(9, 0), (4, 0), (2, 1)]
    assert run.steps[2].plan.logits_rows == 1


def test_mid_prompt_logits_rows_are_computed_and_discarded() -> None:
    run = Run(SchedulerConfig(max_num_batched_tokens=4), [Ask(10, 1)]).finish()
    assert [(step.plan.logits_rows, step.plan.sampled) for step in run.steps] == [(1, 0), (1, 0), (1, 1)]


@pytest.mark.parametrize("memory", ["reserve-max-tokens", "reserve-max-model-len"])
def test_reserved_memory_is_taken_whole_and_never_preempts(memory: Any) -> None:
    config = SchedulerConfig(kv_memory=memory, block_size=4, num_blocks=13, max_model_len=24)
    run = Run(config, [Ask(5, 7)] * 5).finish()
    each = 3 if memory == "reserve-max-tokens" else 6
    assert run.steps[0].plan.blocks_used == 12 // each * each
    assert len(run.steps[0].plan.admitted) == 12 // each
    assert not any(step.plan.preempted for step in run.steps)
    assert all(len(ids) == each for step in run.steps for _, _, ids in step.plan.block_grants())
