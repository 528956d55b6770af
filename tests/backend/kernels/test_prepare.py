"""Index tensors made on the device are those that the host makes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.kernels import prepare, reference
from backend.kernels.gather import gather_rows
from scheduler.batch import BatchRequest, flat_batch
from tests.backend.kernels.cases import DEVICE, few, integers

Steps = list[tuple[int, int]]
steps = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=5)


def requests(step: Steps, block_size: int) -> list[BatchRequest]:
    """Requests with `computed` tokens before and `scheduled` now, with token ids and blocks that name their owner."""
    found = []
    for index, (computed, scheduled) in enumerate(step):
        known = computed + scheduled
        blocks = [1 + index + len(step) * block for block in range(-(-known // block_size))]
        found.append(BatchRequest(str(index), [100 * index + j for j in range(known)], computed, scheduled, blocks))
    return found


def tables(batch: list[BatchRequest], seats: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token and block table with request i in ``seats[i]``; -1 elsewhere, which must not be read."""
    shape = (len(seats) + 1, max(len(request.token_ids) for request in batch) + 3)
    token_table, block_table = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
    for seat, request in zip(seats, batch, strict=True):
        token_table[seat, : len(request.token_ids)] = request.token_ids
        block_table[seat, : len(request.block_table)] = request.block_table
    return torch.from_numpy(token_table).to(DEVICE), torch.from_numpy(block_table).to(DEVICE)


def prepared(step: Steps, block_size: int, padding: int, idle: int = 0) -> prepare.StepTensors:
    """What the device makes of a step, with `idle` requests that have no rows behind the real ones."""
    batch = requests(step, block_size)
    seats = list(range(len(step), 0, -1))
    starts = np.cumsum([0, *(scheduled for _, scheduled in step), *[0] * idle])
    out = prepare.StepTensors.empty(int(starts[-1]) + padding, len(step) + idle, DEVICE)
    arguments = (
        integers(seats + [0] * idle), integers([computed for computed, _ in step] + [0] * idle),
        integers(starts.tolist(), torch.int32), *tables(batch, seats), block_size,
    )  # fmt: skip
    prepare.prepare_step(*arguments, out)
    expected = prepare.StepTensors.empty(len(out.input_ids), len(step) + idle, DEVICE)
    reference.prepare_step(*arguments, expected)
    for name in prepare.StepTensors.__slots__:
        assert torch.equal(getattr(out, name), getattr(expected, name)), name
    return out


@few
@given(steps, st.integers(1, 17), st.integers(0, 5))
def test_the_device_makes_what_the_host_makes(step: Steps, block_size: int, padding: int) -> None:
    out = prepared(step, block_size, padding)
    rows = sum(scheduled for _, scheduled in step)
    host = flat_batch(requests(step, block_size), block_size, padded_to=rows + padding)
    for name in prepare.StepTensors.__slots__:
        made = getattr(out, name)
        assert made.tolist() == getattr(host, name).tolist(), name
        assert str(made.dtype).removeprefix("torch.") == str(getattr(host, name).dtype), name


def test_a_chunk_longer_than_a_turn_of_the_loop() -> None:
    prepared([(3, 2100), (5, 1)], 16, 1500)


def test_requests_without_rows_attend_over_nothing() -> None:
    out = prepared([(4, 2), (7, 1)], 4, padding=3, idle=2)
    assert out.seq_lens.tolist() == [6, 8, 0, 0]
    assert out.logits_indices.tolist() == [1, 2, 2, 2]


def test_the_textbook_step_of_three_requests() -> None:
    """A decodes at position 10, B computes 5 tokens in mid-prompt, C its first 3; block size 4."""
    batch = [([7, 2, 12], 10, 1), ([3, 9, 5], 4, 5), ([6], 0, 3)]
    blocks = torch.zeros((3, 3), dtype=torch.int32)
    for seat, (ids, _, _) in enumerate(batch):
        blocks[seat, : len(ids)] = torch.tensor(ids)
    tokens = (torch.arange(3)[:, None] * 100 + 100 + torch.arange(20)).int()
    out = prepare.StepTensors.empty(9, 3, DEVICE)
    starts = integers([0, 1, 6, 9], torch.int32)
    prepare.prepare_step(
        integers([0, 1, 2]), integers([10, 4, 0]), starts, tokens.to(DEVICE), blocks.to(DEVICE), 4, out
    )
    assert out.input_ids.tolist() == [110, 204, 205, 206, 207, 208, 300, 301, 302]
    assert out.positions.tolist() == [10, 4, 5, 6, 7, 8, 0, 1, 2]
    assert out.slot_mapping.tolist() == [50, 36, 37, 38, 39, 20, 24, 25, 26]
    assert out.seq_lens.tolist() == [11, 9, 3]
    assert out.logits_indices.tolist() == [0, 5, 8]
    assert gather_rows(blocks.to(DEVICE), integers([2, 0])).tolist() == [[6, 0, 0], [7, 2, 12]]


@few
@given(st.sets(st.tuples(st.integers(0, 3), st.integers(-1, 9)), max_size=12))
def test_scattered_entries_land_in_the_table_and_negative_columns_nowhere(places: set[tuple[int, int]]) -> None:
    rows, cols = (integers([place[axis] for place in sorted(places)], torch.int32) for axis in (0, 1))
    values = torch.arange(len(places), device=DEVICE) + 100
    actual = torch.zeros((4, 10), dtype=torch.int32, device=DEVICE)
    expected = actual.clone()
    prepare.append_blocks(actual, rows, cols, values)
    reference.scatter(expected, rows, cols, values)
    assert torch.equal(actual, expected)


def test_a_sampled_token_is_the_next_steps_input() -> None:
    tokens = torch.zeros((2, 8), dtype=torch.int32, device=DEVICE)
    prepare.store_tokens(tokens, integers([1, 0]), integers([5, -1]), integers([42, 43]))
    out = prepare.StepTensors.empty(1, 1, DEVICE)
    blocks = torch.ones((2, 2), dtype=torch.int32, device=DEVICE)
    prepare.prepare_step(integers([1]), integers([5]), integers([0, 1], torch.int32), tokens, blocks, 4, out)
    assert out.input_ids.tolist() == [42]
    assert tokens[0].tolist() == [0] * 8
