"""The batch builder: what a plan becomes, checked against a plain loop over tokens and by laws over random runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import InputError, PlanRows, Request, Scheduler, SchedulerConfig, StepPlan
from scheduler.batch import (
    NO_SLOT,
    PAD_TOKEN,
    UNKNOWN_TOKEN,
    BatchRequest,
    BlockUpdates,
    FlatBatch,
    PaddedBatch,
    PersistentBatch,
    flat_batch,
    padded_batch,
    ragged_mask,
)

POLICIES = ("chunked", "static", "slots", "orca", "prefill-first")


def prompt_of(index: int, length: int) -> np.ndarray:
    """Tokens that tell request and position, none of which is padding."""
    return (1000 * (index + 1) + np.arange(length)).astype(np.int32)


class Run:
    """A real scheduler and its batch, step by step; sampled tokens tell request and position too."""

    def __init__(self, requests: list[tuple[int, int]], **config: Any) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(**{"max_model_len": 64, "batch_timeout_s": 0.0, **config}),
            track_blocks=True,
            token_rows=True,
        )
        self.batch = PersistentBatch.of(self.scheduler)
        self.mirror = self.batch.block_table.copy()
        for index, (prompt, outputs) in enumerate(requests):
            self.scheduler.add(Request(index, prompt_of(index, prompt), outputs))

    def steps(self) -> Iterator[tuple[StepPlan, PlanRows, BlockUpdates]]:
        """Plan, apply, hand out, then give the results; two steps in flight when async."""
        waiting: list[tuple[StepPlan, PlanRows]] = []
        while self.scheduler.has_work:
            plan = self.scheduler.schedule()
            if not plan.empty:
                rows = self.scheduler.rows(plan)
                updates = self.batch.apply(plan)
                self.mirror[updates.slots, updates.columns] = updates.ids
                yield plan, rows, updates
                waiting.append((plan, rows))
            if waiting and (plan.empty or len(waiting) > self.scheduler.config.async_scheduling):
                done, of = waiting.pop(0)
                self.scheduler.update(done, sampled_for(of))

    def held(self) -> list[Request]:
        return self.scheduler.burning()

    def rectangle(self, plan: StepPlan, rows: PlanRows) -> PaddedBatch:
        return self.batch.build_padded(plan, rows, self.held())


def sampled_for(rows: PlanRows) -> np.ndarray:
    """The token sampled by each row, by the rule of `prompt_of`."""
    index = np.array([int(request.request_id) for request in rows.requests])
    return (1000 * (index + 1) + rows.computed + rows.scheduled).astype(np.int32)


def by_loop(rows: PlanRows, block_size: int) -> dict[str, list[int]]:
    """The flat batch by the plain double loop of seed 000's program."""
    flat: dict[str, list[int]] = {
        "req_indices": [], "positions": [], "input_ids": [], "slot_mapping": [], "seq_lens": [], "logits_indices": [],
    }  # fmt: skip
    for index, request in enumerate(rows.requests):
        for position in range(rows.computed[index], rows.computed[index] + rows.scheduled[index]):
            flat["req_indices"].append(index)
            flat["positions"].append(position)
            flat["input_ids"].append(1000 * (int(request.request_id) + 1) + position)
            flat["slot_mapping"].append(request.blocks[position // block_size] * block_size + position % block_size)
        flat["seq_lens"].append(int(rows.computed[index] + rows.scheduled[index]))
        flat["logits_indices"].append(len(flat["positions"]) - 1)
    return flat


workloads = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=8)
configs = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(POLICIES),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.sampled_from([7, 16, 64]),
        "block_size": st.sampled_from([1, 3, 4, 16]),
        "long_prefill_token_threshold": st.sampled_from([0, 5]),
        "kv_memory": st.sampled_from(["paged", "reserve-max-tokens", "reserve-max-model-len"]),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "enable_prefix_caching": st.booleans(),
        "padding_side": st.sampled_from(["left", "right"]),
    }
)


def pool_for(config: dict[str, Any], spare: int) -> int:
    """A tight pool: one request of full length fits, in `static` even one padded to another's length."""
    size: int = config["block_size"]
    return 2 * -(-64 // size) + spare


@settings(max_examples=40, deadline=None)
@given(requests=workloads, config=configs, spare=st.integers(1, 6), async_scheduling=st.booleans())
def test_block_table_rows_equal_the_requests_blocks_and_nothing_but_the_grants_is_written(
    requests: list[tuple[int, int]], config: dict[str, Any], spare: int, async_scheduling: bool
) -> None:
    run = Run(requests, num_blocks=pool_for(config, spare), async_scheduling=async_scheduling, **config)
    before = run.batch.block_table.copy()
    for plan, rows, updates in run.steps():
        table = run.batch.block_table
        for request in [*run.scheduler.seats.running(), *run.held()]:
            held = int(run.batch.num_blocks[request.slot])
            assert table[request.slot, :held].tolist() == request.blocks
            assert not table[request.slot, held:].any()
        granted = {request.slot: (first, len(blocks)) for request, first, blocks in plan.block_grants()}
        for slot, column in np.argwhere(table != before).tolist():
            first, count = granted[slot]
            assert first <= column
            assert column < first + count or (first == 0 and table[slot, column] == 0)
        assert set(updates.slots.tolist()) == set(granted)
        assert np.array_equal(run.mirror, table)
        assert len(rows.requests) == len(set(rows.slots.tolist()))
        before = table.copy()


@settings(max_examples=40, deadline=None)
@given(requests=workloads, config=configs, spare=st.integers(1, 6))
def test_flat_batch_is_what_the_plain_loop_over_tokens_gives(
    requests: list[tuple[int, int]], config: dict[str, Any], spare: int
) -> None:
    sizes = (8, 16, 24, 32)
    run = Run(requests, num_blocks=pool_for(config, spare), layout="ragged", cudagraph_capture_sizes=sizes, **config)
    for plan, rows, _ in run.steps():
        flat = run.batch.build(plan, rows)
        expected = by_loop(rows, config["block_size"])
        real = len(expected["positions"])
        for name, values in expected.items():
            assert getattr(flat, name)[: len(values)].tolist() == values, name
        assert flat.query_start_loc.tolist()[1:] == [
            *(end + 1 for end in expected["logits_indices"]),
            *[real] * (config["max_num_seqs"] - len(rows.requests)),
        ]
        assert flat.query_start_loc[0] == 0
        assert len(flat.input_ids) == len(flat.positions) == len(flat.slot_mapping) == plan.shape.computed_tokens
        assert len(flat.logits_indices) == plan.shape.logits_rows
        assert set(flat.slot_mapping[real:].tolist()) <= {NO_SLOT}
        assert set(flat.input_ids[real:].tolist()) <= {PAD_TOKEN}
        for row, request in zip(flat.block_table.tolist(), rows.requests, strict=True):
            assert row == request.blocks + [0] * (len(row) - len(request.blocks))


@settings(max_examples=40, deadline=None)
@given(requests=workloads, config=configs, spare=st.integers(1, 6))
def test_rectangle_holds_the_flat_batchs_tokens_and_padding_never_writes_into_a_token_s_slot(
    requests: list[tuple[int, int]], config: dict[str, Any], spare: int
) -> None:
    run = Run(requests, num_blocks=pool_for(config, spare), layout="padded", **config)
    for plan, rows, _ in run.steps():
        flat, padded = run.batch.build(plan, rows), run.rectangle(plan, rows)
        assert padded.input_ids.size == plan.shape.computed_tokens
        assert len(padded.logits_indices) == plan.shape.logits_rows
        scheduled = padded.is_token[: padded.num_requests]
        for name in ("input_ids", "positions"):
            assert getattr(padded, name)[: padded.num_requests][scheduled].tolist() == getattr(flat, name).tolist()
        assert padded.input_ids.reshape(-1)[padded.logits_indices].all()
        assert_writes_stay_home(run, padded)
        assert_mask(padded)


def assert_writes_stay_home(run: Run, padded: PaddedBatch) -> None:
    """Every write lies in the row's own blocks; those of padding lie before the row's first token."""
    size = run.batch.block_size
    home = {
        slot: {
            block * size + offset: index * size + offset for index, block in enumerate(row) for offset in range(size)
        }
        for slot, row in enumerate(run.batch.block_table.tolist())
    }
    written: list[int] = []
    for row, slot in enumerate(padded.slots.tolist()):
        start = int(padded.kv_start[row])
        for cell, target in enumerate(padded.slot_mapping[row].tolist()):
            if padded.is_token[row, cell]:
                assert home[slot][target] == start + padded.positions[row, cell]
            elif target != NO_SLOT:
                assert home[slot][target] < start
            written += [target] * (target != NO_SLOT)
    assert len(written) == len(set(written))


def assert_mask(padded: PaddedBatch) -> None:
    """A token sees its own and the earlier tokens of its request, wherever they lie; padding sees nothing."""
    mask = padded.attention_mask()
    assert mask.shape == (*padded.input_ids.shape, padded.width)
    assert np.array_equal(mask.sum(axis=2), np.where(padded.is_token, padded.positions + 1, 0))
    assert padded.attention_mask(padding_sees_first=True).any(axis=2).all()
    slots = padded.kv_slots()
    for row, cells in enumerate(padded.is_token):
        for cell in np.flatnonzero(cells):
            assert slots[row][mask[row, cell]][-1] == padded.slot_mapping[row, cell]


@pytest.mark.parametrize("side", ["left", "right"])
def test_left_padding_puts_pads_before_the_prompt_in_the_kv_and_right_padding_none(side: str) -> None:
    run = Run([(3, 4), (5, 2)], policy="static", max_num_seqs=2, block_size=4, num_blocks=9, padding_side=side)
    seen = [(plan, run.rectangle(plan, rows)) for plan, rows, _ in run.steps()]
    prefill = seen[0][1]
    a, b = (list(blocks) for blocks in prefill.block_table.tolist())
    assert prefill.is_token.astype(int).tolist() == [[0, 0, 1, 1, 1] if side == "left" else [1, 1, 1, 0, 0], [1] * 5]
    assert prefill.kv_start.tolist() == [2 if side == "left" else 0, 0]
    row_a = [a[0] * 4, a[0] * 4 + 1, a[0] * 4 + 2, a[0] * 4 + 3, a[1] * 4]
    assert prefill.slot_mapping[0].tolist() == (row_a if side == "left" else [*row_a[:3], NO_SLOT, NO_SLOT])
    assert prefill.slot_mapping[1].tolist() == [b[0] * 4, b[0] * 4 + 1, b[0] * 4 + 2, b[0] * 4 + 3, b[1] * 4]
    assert prefill.positions[0].tolist() == ([0, 0, 0, 1, 2] if side == "left" else [0, 1, 2, 0, 0])
    assert prefill.logits_indices.tolist() == ([4, 9] if side == "left" else [2, 9])
    first_decode = seen[1][1]
    assert first_decode.slot_mapping[0, 0] == (a[1] * 4 + 1 if side == "left" else a[0] * 4 + 3)
    assert first_decode.attention_mask()[0, 0].astype(int).tolist() == (
        [0, 0, 1, 1, 1, 1] if side == "left" else [1, 1, 1, 1, 0, 0]
    )


def test_rows_that_ended_burn_on_in_a_static_batch_on_their_own_last_token() -> None:
    run = Run([(3, 5), (5, 2)], policy="static", max_num_seqs=2, block_size=4, num_blocks=9)
    seen = [(plan, run.rectangle(plan, rows)) for plan, rows, _ in run.steps()]
    assert [plan.padding_finished for plan, _ in seen] == [0, 0, 1, 1, 1]
    assert [padded.num_requests for _, padded in seen] == [2, 2, 1, 1, 1]
    for _, padded in seen[2:]:
        assert padded.input_ids[1, 0] == 2000 + 6  # the second request's last output, its token 6
        assert padded.positions[1, 0] == 6
        block = padded.block_table[1, 1]
        assert padded.slot_mapping[1, 0] == block * 4 + 2


def test_a_rectangle_without_the_rows_that_burn_on_is_a_loud_error() -> None:
    run = Run([(3, 5), (5, 1)], policy="static", max_num_seqs=2, block_size=4, num_blocks=9)
    steps = run.steps()
    next(steps)
    plan, rows, _ = next(steps)
    with pytest.raises(RuntimeError, match=r"1 rows \+ 0 burning are not the plan's 2"):
        run.batch.build_padded(plan, rows)


@settings(max_examples=40, deadline=None)
@given(requests=workloads, config=configs, async_scheduling=st.booleans())
def test_rectangle_reads_as_many_kv_positions_as_the_plan_counts(
    requests: list[tuple[int, int]], config: dict[str, Any], async_scheduling: bool
) -> None:
    run = Run(requests, num_blocks=pool_for(config, 3), layout="padded", async_scheduling=async_scheduling, **config)
    for plan, rows, _ in run.steps():
        rectangle = run.rectangle(plan, rows)
        assert plan.context_tokens + plan.padding_context == rectangle.width * len(rectangle.slots)


@pytest.mark.parametrize(("side", "widths"), [("left", [10, 11, 12, 13]), ("right", [10, 11, 11, 11])])
def test_left_padding_keeps_the_rectangle_growing_when_its_longest_row_has_ended(side: str, widths: list[int]) -> None:
    run = Run([(10, 1), (2, 4)], policy="static", max_num_seqs=2, block_size=4, num_blocks=17, padding_side=side)
    assert [run.rectangle(plan, rows).width for plan, rows, _ in run.steps()] == widths


def test_a_plan_applied_twice_or_left_out_is_a_loud_error() -> None:
    run = Run([(4, 9)], policy="chunked", max_num_seqs=2, block_size=4, num_blocks=9)
    plans = [plan for plan, _, _ in run.steps() if plan.new_blocks or plan.steady_blocks]
    with pytest.raises(RuntimeError, match="once, in order"):
        run.batch.apply(plans[1])
    fresh = PersistentBatch(2, 64, 4)
    with pytest.raises(RuntimeError, match="once, in order"):
        fresh.apply(plans[1])


def test_token_ids_are_marked_unknown_where_contents_are_not_kept() -> None:
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=2), track_blocks=True)
    scheduler.add(Request("a", 3, 2))
    batch = PersistentBatch.of(scheduler)
    plan = scheduler.schedule()
    batch.apply(plan)
    flat = batch.build(plan, scheduler.rows(plan))
    assert flat.input_ids.tolist() == [UNKNOWN_TOKEN] * 3
    assert flat.slot_mapping.tolist() == [16, 17, 18]


def test_static_rows_may_reserve_more_blocks_than_the_model_length_has() -> None:
    run = Run([(60, 4), (4, 60)], policy="static", max_num_seqs=2, block_size=4, num_blocks=61)
    widths = [run.rectangle(plan, rows).width for plan, rows, _ in run.steps()]
    assert widths == list(range(60, 120))
    assert run.batch.block_table.shape == (2, 32)


def test_dtypes_are_those_the_kernels_take() -> None:
    flat = flat_batch([BatchRequest("a", [5, 6], 0, 2, [1])], 4, max_num_seqs=3, padded_to=4)
    assert {name: getattr(flat, name).dtype.name for name in FlatBatch.__slots__} == {
        "input_ids": "int32", "positions": "int64", "query_start_loc": "int32", "seq_lens": "int32",
        "block_table": "int32", "slot_mapping": "int64", "logits_indices": "int64", "req_indices": "int64",
        "slots": "int64",
    }  # fmt: skip
    assert flat.input_ids.tolist() == [5, 6, PAD_TOKEN, PAD_TOKEN]
    assert flat.slot_mapping.tolist() == [4, 5, NO_SLOT, NO_SLOT]
    assert flat.query_start_loc.tolist() == [0, 2, 2, 2]
    padded = padded_batch([BatchRequest("a", [5, 6], 0, 2, [1]), BatchRequest("b", [7], 0, 1, [2])], 4)
    assert {padded.input_ids.dtype.name, padded.seq_lens.dtype.name, padded.block_table.dtype.name} == {"int32"}
    assert {padded.positions.dtype.name, padded.slot_mapping.dtype.name, padded.logits_indices.dtype.name} == {"int64"}


def test_draft_tokens_get_a_row_of_logits_each_besides_the_last() -> None:
    a = BatchRequest("a", list(range(13)), 10, 3, [1, 2, 3, 4], draft_tokens=2)
    b = BatchRequest("b", [7, 8], 0, 2, [5])
    assert flat_batch([a, b], 4).logits_indices.tolist() == [0, 1, 2, 4]


def test_hand_typed_pads_come_before_the_rows_kv() -> None:
    a, b = BatchRequest("a", [5, 6], 0, 2, [3], pad=2), BatchRequest("b", [1, 2, 3, 4], 0, 4, [1])
    padded = padded_batch([a, b], 4)
    assert padded.slot_mapping.tolist() == [[12, 13, 14, 15], [4, 5, 6, 7]]
    assert padded.attention_mask()[0].astype(int).tolist() == [[0] * 4, [0] * 4, [0, 0, 1, 0], [0, 0, 1, 1]]
    assert padded_batch([a, b], 4, padding_side="right").is_token.astype(int).tolist()[0] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"computed": -1}, "request a: computed -1, pad 0; expected both >= 0"),
        ({"scheduled": 0}, "request a: scheduled is 0; expected at least 1"),
        ({"scheduled": 4}, r"request a: computed 2 \+ scheduled 4 exceed its 5 known tokens"),
        ({"block_table": [1]}, "request a: block_table has 1 blocks of 4 tokens; expected at least 2"),
        ({"block_table": [1, 0]}, "request a: block_table has an id below 1"),
        ({"draft_tokens": 3}, "request a: draft_tokens is 3; expected < scheduled"),
    ],
)
def test_impossible_typed_requests_are_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    good = {"name": "a", "token_ids": [1, 2, 3, 4, 5], "computed": 2, "scheduled": 3, "block_table": [1, 2]}
    with pytest.raises(InputError, match=sentence):
        flat_batch([BatchRequest(**{**good, **changes})], 4)


def test_batches_of_nobody_or_of_too_many_are_refused() -> None:
    one = BatchRequest("a", [1, 2], 0, 2, [1])
    with pytest.raises(InputError, match="0 requests"):
        flat_batch([], 4)
    with pytest.raises(InputError, match="2 requests for 1 slots"):
        flat_batch([one, one], 4, max_num_seqs=1)
    with pytest.raises(InputError, match="padded_to is 1; expected at least the 2"):
        flat_batch([one], 4, padded_to=1)


lens = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=5)


@given(rows=lens, spare=st.integers(0, 3))
def test_ragged_mask_is_block_diagonal_and_causal(rows: list[tuple[int, int]], spare: int) -> None:
    query_lens, earlier = [row[0] for row in rows], [row[1] for row in rows]
    seq_lens = [query + before for query, before in rows]
    starts = np.cumsum([0, *query_lens]).tolist()
    mask = ragged_mask(starts + [starts[-1]] * spare, seq_lens)
    expected = np.zeros((sum(query_lens), sum(seq_lens)), dtype=bool)
    for index, (query, before) in enumerate(zip(query_lens, earlier, strict=True)):
        key = sum(seq_lens[:index])
        block = np.tril(np.ones((query, query + before), dtype=bool), k=before)
        expected[starts[index] : starts[index] + query, key : key + query + before] = block
    assert np.array_equal(mask, expected)
