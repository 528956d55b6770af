"""The documents that batchscope comes from, as tests with the values in them; each test names its seed.

Seed 000 is on building the flat batch, seed 003 on slots and a queue, seed 004 on naive and continuous batching.
"""

from __future__ import annotations

import doctest
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from scheduler import WAIT_REASONS, FinishReason, PlanRows, Request, Scheduler, SchedulerConfig, StepPlan
from scheduler.batch import BatchRequest, FlatBatch, PersistentBatch, flat_batch, padded_batch, ragged_mask
from tests.conftest import ROOT

SEVEN = ("input_ids", "positions", "query_start_loc", "seq_lens", "block_table", "slot_mapping", "logits_indices")

# Seed 000: A decodes, B is in the middle of its prompt, C is new.
A = BatchRequest("A", range(100, 111), 10, 1, [7, 2, 12])
B = BatchRequest("B", range(200, 220), 4, 5, [3, 9, 5])
C = BatchRequest("C", range(300, 303), 0, 3, [6])


def seven(batch: FlatBatch) -> dict[str, Any]:
    return {name: getattr(batch, name).tolist() for name in SEVEN}


def test_seed_000_three_requests_give_these_seven_tensors() -> None:
    batch = flat_batch([A, B, C], 4)
    assert seven(batch) == {
        "input_ids": [110, 204, 205, 206, 207, 208, 300, 301, 302],
        "positions": [10, 4, 5, 6, 7, 8, 0, 1, 2],
        "query_start_loc": [0, 1, 6, 9],
        "seq_lens": [11, 9, 3],
        "block_table": [[7, 2, 12], [3, 9, 5], [6, 0, 0]],
        "slot_mapping": [50, 36, 37, 38, 39, 20, 24, 25, 26],
        "logits_indices": [0, 5, 8],
    }
    assert batch.req_indices.tolist() == [0, 1, 1, 1, 1, 1, 2, 2, 2]


def test_seed_000_two_neighbours_of_b_lie_nineteen_slots_apart() -> None:
    slots = flat_batch([A, B, C], 4).slot_mapping
    assert slots[5] == 5 * 4 + 0  # position 8: third block, which is block 5, offset 0
    assert slots[4] - slots[5] == 19


def test_seed_000_query_start_loc_is_as_long_as_the_slots_and_its_tail_holds_the_total() -> None:
    assert flat_batch([A, B, C], 4, max_num_seqs=6).query_start_loc.tolist() == [0, 1, 6, 9, 9, 9, 9]


def test_seed_000_fourth_request_of_nine_new_tokens_writes_to_the_slots_predicted_by_hand() -> None:
    fourth = BatchRequest("D", range(400, 409), 0, 9, [1, 4, 8])
    batch = flat_batch([A, B, C, fourth], 4)
    assert batch.slot_mapping.tolist()[9:] == [4, 5, 6, 7, 16, 17, 18, 19, 32]
    assert batch.query_start_loc.tolist() == [0, 1, 6, 9, 18]
    assert batch.logits_indices.tolist() == [0, 5, 8, 17]


def test_seed_000_block_size_16_changes_slot_mapping_and_the_block_table_that_was_retyped_and_nothing_else() -> None:
    before = seven(flat_batch([A, B, C], 4))
    b = BatchRequest("B", B.token_ids, B.computed, B.scheduled, [3])
    after = seven(flat_batch([A, b, C], 16))
    assert {name for name in SEVEN if before[name] != after[name]} == {"block_table", "slot_mapping"}
    assert after["block_table"] == [[7, 2, 12], [3, 0, 0], [6, 0, 0]]
    assert after["slot_mapping"] == [7 * 16 + 10, 52, 53, 54, 55, 56, 96, 97, 98]


def test_seed_000_position_37_in_blocks_12_4_30_of_16_is_slot_485() -> None:
    request = BatchRequest("r", range(38), 37, 1, [12, 4, 30])
    assert flat_batch([request], 16).slot_mapping.tolist() == [485]


def test_seed_000_scheduled_2_5_3_repeats_and_restarts_as_the_runner_comments_say() -> None:
    requests = [BatchRequest(name, range(n), 0, n, [1, 2]) for name, n in (("x", 2), ("y", 5), ("z", 3))]
    batch = flat_batch(requests, 4)
    assert batch.req_indices.tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]
    assert batch.query_start_loc.tolist()[1:] == [2, 7, 10]  # cu_num_tokens
    assert batch.positions.tolist() == [0, 1, 0, 1, 2, 3, 4, 0, 1, 2]


def chunk_beside_decodes(layout: Literal["padded", "ragged"]) -> tuple[StepPlan, PlanRows, PersistentBatch]:
    """A step of the real scheduler with 200 decodes and the first 5,000 tokens of a longer prompt."""
    config = SchedulerConfig(layout=layout, max_num_seqs=256, max_num_batched_tokens=5200)
    scheduler = Scheduler(config, track_blocks=True)
    batch = PersistentBatch.of(scheduler)
    for index in range(200):
        scheduler.add(Request(index, 1, 10))
    prompts = scheduler.schedule()
    batch.apply(prompts)
    scheduler.update(prompts)
    scheduler.add(Request("long", 6000, 10))
    plan = scheduler.schedule()
    batch.apply(plan)
    return plan, scheduler.rows(plan), batch


def test_seed_000_a_chunk_of_5000_and_200_decodes_are_5200_rows_and_201_logits_rows() -> None:
    plan, rows, batch = chunk_beside_decodes("ragged")
    assert rows.scheduled.tolist() == [1] * 200 + [5000]
    assert (plan.shape.computed_tokens, plan.shape.logits_rows) == (5200, 201)
    flat = batch.build(plan, rows)
    assert (len(flat.input_ids), len(flat.logits_indices)) == (5200, 201)


def test_seed_000_the_same_step_as_a_rectangle_is_1005000_rows() -> None:
    plan, rows, batch = chunk_beside_decodes("padded")
    assert (plan.rows, plan.cols, plan.shape.computed_tokens) == (201, 5000, 1_005_000)
    assert plan.padding_prompt == 1_005_000 - 5200
    assert batch.build_padded(plan, rows).input_ids.shape == (201, 5000)


def test_seed_000_logits_of_a_partial_prompt_are_computed_and_discarded() -> None:
    plan, rows, _ = chunk_beside_decodes("ragged")
    assert (plan.logits_rows, plan.sampled) == (201, 200)
    assert rows.samples.tolist() == [True] * 200 + [False]


def test_seed_000_a_batch_of_37_tokens_is_padded_to_the_captured_size_40_with_rows_of_nobody() -> None:
    sizes = (1, 2, 4, *range(8, 513, 8))  # vLLM's default sizes up to 512
    scheduler = Scheduler(SchedulerConfig(cudagraph_capture_sizes=sizes), track_blocks=True, token_rows=True)
    scheduler.add(Request("a", list(range(1, 38)), 4))
    plan = scheduler.schedule()
    assert (plan.real_shape.computed_tokens, plan.shape.computed_tokens, plan.padding_graph) == (37, 40, 3)
    batch = PersistentBatch.of(scheduler)
    batch.apply(plan)
    flat = batch.build(plan, scheduler.rows(plan))
    assert len(flat.input_ids) == len(flat.positions) == len(flat.slot_mapping) == 40
    assert set(flat.query_start_loc[1:].tolist()) == {37}
    assert flat.slot_mapping[37:].tolist() == [-1, -1, -1]
    assert flat.logits_indices.tolist() == [36]


# Seed 003: four prompts of 17, 14, 13 and 14 tokens wait for two slots.
EOS, EOT = 128001, 128009
PROMPTS = (
    (128000, 128006, 882, 128007, 271, 3923, 374, 220, 17, 10, 17, 30, 128009, 128006, 78191, 128007, 271),
    (128000, 128006, 882, 128007, 271, 678, 264, 1933, 13, 128009, 128006, 78191, 128007, 271),
    (128000, 128006, 882, 128007, 271, 46864, 24748, 13, 128009, 128006, 78191, 128007, 271),
    (128000, 128006, 882, 128007, 271, 64693, 315, 9822, 30, 128009, 128006, 78191, 128007, 271),
)
ANSWERS = ((19, EOT), (6713, 11, 6437, EOS), (9906, 0, EOT), (60704, EOT))
"""Outputs, the ending token included: two decodes' worth for the longest, so that slots empty at different steps."""


class Slots:
    """The `slots` policy on seed 003's prompts, its steps recorded as (slots, computed before, scheduled)."""

    def __init__(self, answers: Sequence[Sequence[int]] = ANSWERS, **config: Any) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(
                policy="slots", max_num_seqs=2, block_size=16, num_blocks=33, max_model_len=128,
                eos_token_ids=(EOS, EOT), enable_prefix_caching=False, **config,
            ),
            track_blocks=True,
            token_rows=True,
        )  # fmt: skip
        self.batch = PersistentBatch.of(self.scheduler)
        self.answers = answers
        self.steps: list[tuple[list[int], list[int], list[int]]] = []
        self.seq_lens: list[list[int]] = []
        self.plans: list[StepPlan] = []
        self.finished: list[tuple[int, int, FinishReason | None]] = []
        self.blocks: dict[int, list[int]] = {}
        self.requests = [Request(index, list(prompt), 1000) for index, prompt in enumerate(PROMPTS)]
        for request in self.requests:
            self.scheduler.add(request)
        while self.scheduler.has_work:
            self._step()

    def _step(self) -> None:
        plan = self.scheduler.schedule()
        rows = self.scheduler.rows(plan)
        self.batch.apply(plan)
        self.seq_lens.append(self.batch.build(plan, rows).seq_lens.tolist())
        self.steps.append((rows.slots.tolist(), rows.computed.tolist(), rows.scheduled.tolist()))
        self.plans.append(plan)
        for request in rows.requests:
            self.blocks[int(request.request_id)] = list(request.blocks)
        sampled = [self._answer(request, plan) for request in rows.requests]
        for request in self.scheduler.update(plan, sampled):
            self.finished.append((plan.step, int(request.request_id), request.finish_reason))
        self.scheduler.check_integrity()

    def _answer(self, request: Request, plan: StepPlan) -> int:
        answer = self.answers[int(request.request_id)]
        at = request.num_output_tokens - 1  # the output being sampled is counted already
        return answer[at] if at < len(answer) else 7


def test_seed_003_prompts_have_17_14_13_and_14_tokens() -> None:
    assert [len(prompt) for prompt in PROMPTS] == [17, 14, 13, 14]


def test_seed_003_slots_fill_in_index_order_and_a_freed_slot_takes_the_queue_s_front_at_the_next_sweep() -> None:
    assert Slots().steps == [
        ([0], [0], [17]),  # the initial fill: prompt 0 into slot 0, whole, in a step of its own
        ([1], [0], [14]),  # prompt 1 into slot 1
        ([0, 1], [17, 14], [1, 1]),  # decode: prompt 0 answers EOT and frees slot 0
        ([0], [0], [13]),  # the sweep gives slot 0 to the queue's front, prompt 2
        ([0, 1], [13, 15], [1, 1]),  # active slots in slot order, not in order of admission
        ([0, 1], [14, 16], [1, 1]),  # both answer their end: prompt 2 by EOT, prompt 1 by EOS
        ([0], [0], [14]),  # prompt 3, the last, takes the lower slot
        ([0], [14], [1]),
    ]


def test_seed_003_eos_and_eot_end_a_request() -> None:
    run = Slots()
    assert run.finished == [
        (2, 0, FinishReason.STOP),
        (5, 2, FinishReason.STOP),
        (5, 1, FinishReason.STOP),
        (7, 3, FinishReason.STOP),
    ]
    for request, answer in zip(run.requests, ANSWERS, strict=True):
        assert request.tokens is not None
        assert request.tokens[request.num_prompt_tokens :].tolist() == list(answer)


def test_seed_003_seq_lens_at_decode_are_the_current_length_plus_one() -> None:
    assert Slots().seq_lens == [[17], [14], [18, 15], [13], [14, 16], [15, 17], [14], [15]]


def test_seed_003_freed_blocks_are_pushed_in_logical_order_and_popped_last_first() -> None:
    run = Slots()
    assert run.blocks[0] == [1, 2]  # 17 tokens: two blocks of 16
    assert run.blocks[2] == [2]  # prompt 0's second block was pushed last
    assert run.blocks[1] == [3, 1]  # its 17th token takes the block that was pushed before it
    # At the end of step 5 prompt 2 (slot 0) pushed [2], then prompt 1 (slot 1) pushed [3, 1].
    assert run.blocks[3] == [1]


def test_seed_003_the_run_ends_with_every_slot_and_block_free() -> None:
    run = Slots()
    assert run.scheduler.kv.pool.num_free == 32
    assert (run.scheduler.seats.num_taken, len(run.scheduler.waiting), run.scheduler.has_work) == (0, 0, False)
    assert run.scheduler.schedule().empty


def test_seed_003_prompts_2_and_3_wait_because_the_sweep_is_over_or_the_slots_are_taken() -> None:
    waits = [(plan.waiting, WAIT_REASONS[plan.wait_reason]) for plan in Slots().plans]
    assert waits == [
        (3, "batch-closed"), (2, "batch-closed"), (2, "seqs"), (1, "batch-closed"), (1, "seqs"), (1, "seqs"),
        (0, "none"), (0, "none"),
    ]  # fmt: skip


@pytest.mark.parametrize(("margin", "longest"), [(0, 128), (1, 127)])
def test_seed_003_the_length_cap_is_on_the_whole_sequence_and_a_margin_of_one_ends_one_token_earlier(
    margin: int, longest: int
) -> None:
    run = Slots(answers=[(), (), (), ()], model_len_margin=margin)
    assert [request.finish_reason for request in run.requests] == [FinishReason.LENGTH] * 4
    assert [request.num_tokens for request in run.requests] == [longest] * 4
    # a longer prompt reaches the cap sooner
    assert [request.num_output_tokens for request in run.requests] == [longest - len(p) for p in PROMPTS]


# Seed 004: A ends, D with its prompt of 4 takes its place beside B and C, which decode.
D4 = BatchRequest("D", [11, 12, 13, 14], 0, 4, [1])
B4 = BatchRequest("B", [21, 22, 23, 24, 25], 4, 1, [2, 3])
C4 = BatchRequest("C", [31, 32, 33], 2, 1, [4])


def test_seed_004_d_b_c_have_cu_seqlens_0_4_5_6_and_keys_4_5_3() -> None:
    batch = flat_batch([D4, B4, C4], 4)
    assert batch.query_start_loc.tolist() == [0, 4, 5, 6]
    assert batch.seq_lens.tolist() == [4, 5, 3]
    assert batch.logits_indices.tolist() == [3, 4, 5]  # the last row of each request gives its next token


def test_seed_004_the_rectangle_is_3_by_4_where_the_flat_batch_is_6_rows() -> None:
    assert len(flat_batch([D4, B4, C4], 4).input_ids) == 6
    padded = padded_batch([D4, B4, C4], 4)
    assert padded.input_ids.shape == (3, 4)
    assert padded.input_ids.tolist() == [[11, 12, 13, 14], [0, 0, 0, 25], [0, 0, 0, 33]]


def test_seed_004_the_mask_is_a_triangle_for_d_and_one_line_each_for_b_and_c() -> None:
    batch = flat_batch([D4, B4, C4], 4)
    drawn = ["".join(".#"[int(seen)] for seen in row) for row in ragged_mask(batch.query_start_loc, batch.seq_lens)]
    assert drawn == [
        "#...........",
        "##..........",
        "###.........",
        "####........",
        "....#####...",
        ".........###",
    ]


def abcd(**config: Any) -> list[tuple[list[str], StepPlan, list[int]]]:
    """A, B and C arrive together, D behind them; three slots. Who is in each step, its plan, and each one's keys."""
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=3, batch_timeout_s=0.0, **config))
    for name, prompt, outputs in (("A", 3, 1), ("B", 4, 3), ("C", 2, 2), ("D", 4, 2)):
        scheduler.add(Request(name, prompt, outputs))
    steps = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        if plan.empty:
            continue
        rows = scheduler.rows(plan)
        names = [str(request.request_id) for request in rows.requests]
        steps.append((names, plan, (rows.computed + rows.scheduled).tolist()))
        scheduler.update(plan)
    return steps


def test_seed_004_a_naive_batch_starts_together_and_finishes_together() -> None:
    steps = abcd(policy="static")
    assert [names for names, _, _ in steps] == [["A", "B", "C"], ["B", "C"], ["B"], ["D"], ["D"]]
    assert [plan.rows for _, plan, _ in steps] == [3, 3, 3, 1, 1]  # ended rows burn on
    assert [plan.padding_finished for _, plan, _ in steps] == [0, 1, 2, 0, 0]
    assert [[r.request_id for r in plan.finished] for _, plan, _ in steps] == [[], [], ["A", "B", "C"], [], ["D"]]
    assert (steps[0][1].cols, steps[0][1].padding_prompt) == (4, 12 - 9)


def test_seed_004_in_continuous_batching_d_takes_a_s_place_one_step_later() -> None:
    steps = abcd(policy="chunked")
    assert [names for names, _, _ in steps] == [["A", "B", "C"], ["B", "C", "D"], ["B", "D"]]
    _, joined, keys = steps[1]
    assert joined.shape.computed_tokens == 6
    assert keys == [5, 3, 4]  # of B, C and D
    assert [plan.padding_finished for _, plan, _ in steps] == [0, 0, 0]


def test_seed_004_padded_continuous_batching_computes_12_rows_for_the_6_tokens() -> None:
    joined = abcd(policy="chunked", layout="padded")[1][1]
    assert (joined.rows, joined.cols, joined.shape.computed_tokens, joined.padding_prompt) == (3, 4, 12, 6)


def test_seed_004_a_prompt_of_100_that_joins_seven_decodes_pads_693_tokens() -> None:
    scheduler = Scheduler(SchedulerConfig(layout="padded", max_num_seqs=8))
    for index in range(7):
        scheduler.add(Request(index, 5, 10))
    scheduler.update(scheduler.schedule())
    scheduler.add(Request("joins", 100, 10))
    plan = scheduler.schedule()
    assert (plan.rows, plan.cols, plan.padding_prompt) == (8, 100, 693)
    assert plan.real_shape.computed_tokens == 107


def test_every_example_in_the_concepts_page_runs_as_printed() -> None:
    failed, tried = doctest.testfile(str(ROOT / "docs" / "concepts.md"), module_relative=False)
    assert tried > 0
    assert failed == 0
