"""The batch a plan becomes: one flat row of tokens with its index tensors, or a padded rectangle with its mask.

Flat (`FlatBatch`): all scheduled tokens of all requests end to end, no padding, and seven tensors that say which token
is whose, at which position, where its K/V is written and where its context is read. Padded (`PaddedBatch`): one row a
request, as wide as the longest. Both are built from `PersistentBatch`, which keeps one row of block ids and token ids
per slot and changes only where a plan granted blocks. The layout of the arrays and the way they are computed (repeat,
cumulative sum, gather) follow vLLM's ``_prepare_inputs`` (vllm/v1/worker/gpu_model_runner.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import InputError
from .plan import IntArray, StepPlan
from .pool import NULL_BLOCK
from .request import Request, TokenArray
from .rows import PlanRows

if TYPE_CHECKING:
    from .scheduler import Scheduler

PaddingSide = Literal["left", "right"]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
Number = TypeVar("Number", np.int32, np.int64)

NO_SLOT = -1
"""In a slot mapping: this row writes no K/V (vLLM's PAD_SLOT_ID)."""
PAD_TOKEN = 0
"""Token id of padding; any valid id will do, its output is dropped."""
UNKNOWN_TOKEN = -1
"""Token id where contents are not kept (simulated requests)."""


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """A ragged step as seven tensors, for N requests with T scheduled tokens and G rows of graph padding.

    Padding rows come last. They belong to no request (no range of `query_start_loc` covers them), carry `PAD_TOKEN` at
    position 0 and write nowhere.

    Attributes:
        input_ids: token ids, int32 ``(T + G,)``. A token sampled by a step still in flight is not known here.
        positions: place of each token in its request, int64 ``(T + G,)``: ``num_computed + offset in this chunk``.
        query_start_loc: request i owns rows ``[loc[i], loc[i + 1])``, int32 ``(slots + 1,)``, the tail filled with T.
        seq_lens: KV positions each request attends over, its new ones included, int32 ``(N,)``.
        block_table: block ids to read the context from, int32 ``(N, most blocks held)``, filled up with null block 0.
        slot_mapping: where each new K/V is written, int64 ``(T + G,)``: ``block * block_size + position % block_size``,
            `NO_SLOT` for padding rows.
        logits_indices: rows that get a next-token distribution, int64 ``(logits rows,)``: the last of each request,
            preceded by those of its draft tokens where it has any. Do not take its length for N.
        req_indices: which request each row belongs to, int64 ``(T,)``.
        slots: seat of each request, int64 ``(N,)``; a kernel that reads a mirror of the whole table needs only these.
    """

    input_ids: TokenArray
    positions: IntArray
    query_start_loc: Int32Array
    seq_lens: Int32Array
    block_table: Int32Array
    slot_mapping: IntArray
    logits_indices: IntArray
    req_indices: IntArray
    slots: IntArray


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """A padded step: R rows x C columns, of which row r computes ``query_lens[r]`` tokens and the rest is padding.

    The first `num_requests` rows are the scheduled requests in plan order. The others have ended but burn on with their
    batch: each computes its last token again, into the slot that is that token's own.

    The K/V of row r begins at `kv_start[r]` of its blocks. What lies before it are the pads of a left-padded prompt:
    they are written once, with the prompt, and read masked from then on. No other padding cell writes anything.

    Attributes:
        input_ids: int32 ``(R, C)``, `PAD_TOKEN` in padding.
        positions: place of each token in its request, pads not counted, int64 ``(R, C)``, 0 in padding.
        is_token: which cells are tokens rather than padding, bool ``(R, C)``.
        slot_mapping: where each cell's K/V is written, int64 ``(R, C)``, or `NO_SLOT`.
        logits_indices: cell of each row's last token in the flattened rectangle, int64 ``(R,)``.
        query_lens: tokens each row computes, int64 ``(R,)``.
        seq_lens: KV positions of its own each row attends over, int32 ``(R,)``.
        kv_start: padding before them, int64 ``(R,)``.
        block_table: int32 ``(R, most blocks held)``, filled up with null block 0.
        slots: seat of each row, int64 ``(R,)``.
        num_requests: rows that are scheduled requests.
        width: KV positions that every row reads, W: the longest row's, its left padding included.
        block_size: tokens a block.
    """

    input_ids: TokenArray
    positions: IntArray
    is_token: BoolArray
    slot_mapping: IntArray
    logits_indices: IntArray
    query_lens: IntArray
    seq_lens: Int32Array
    kv_start: IntArray
    block_table: Int32Array
    slots: IntArray
    num_requests: int
    width: int
    block_size: int

    def attention_mask(self, *, padding_sees_first: bool = False) -> BoolArray:
        """Which KV positions each cell attends to, ``(R, C, W)``: those of its own request up to itself.

        Built when asked for: it is the largest array by far. Padding attends to nothing; a softmax over nothing is not
        a number, and it would reach real rows through the K/V of pads, so to compute with the mask let padding see its
        row's first KV position (`padding_sees_first`).
        """
        keys = np.arange(self.width)
        first = self.kv_start[:, None, None]
        last = (self.kv_start[:, None] + self.positions)[:, :, None]
        mask: BoolArray = (keys >= first) & (keys <= last) & self.is_token[:, :, None]
        if padding_sees_first:
            mask[:, :, 0] |= ~self.is_token
        return mask

    def kv_slots(self) -> IntArray:
        """The KV rectangle that attention reads: cache slots, int64 ``(R, W)``.

        Beyond the blocks that a row holds they lie in the null block, whose contents must be finite.
        """
        index, offset = np.divmod(np.arange(self.width), self.block_size)
        held = self.block_table.shape[1]
        table = self.block_table[:, np.minimum(index, held - 1)]
        blocks: IntArray = np.where(index < held, table, NULL_BLOCK).astype(np.int64)
        return blocks * self.block_size + offset


class BlockUpdates(NamedTuple):
    """Every entry of the block table that a plan changed, each array ``(changes,)``: ``table[slots, columns] = ids``.

    All that must cross to a mirror of the table on a device.
    """

    slots: IntArray
    columns: IntArray
    ids: Int32Array


class PersistentBatch:
    """One row per slot, kept from step to step: the blocks a request holds and its token ids.

    Call `apply` once with every non-empty plan, then `build` or `build_padded`, both before the next `schedule`.

    Args:
        num_slots: rows (`max_num_seqs`).
        max_model_len: most tokens of a request.
        block_size: tokens a KV block.
        max_blocks: columns of the block table; default: the blocks of `max_model_len` tokens.
        token_ids: known token ids, ``(>= num_slots, >= max_model_len)``, shared with whoever keeps them; None: unknown.
        padding_side: where `build_padded` pads.
    """

    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        *,
        max_blocks: int | None = None,
        token_ids: TokenArray | None = None,
        padding_side: PaddingSide = "left",
    ) -> None:
        self.num_slots = num_slots
        self.block_size = block_size
        self.padding_side: PaddingSide = padding_side
        columns = -(-max_model_len // block_size) if max_blocks is None else max_blocks
        self.block_table: Int32Array = np.full((num_slots, columns), NULL_BLOCK, dtype=np.int32)
        """Block ids by slot, int32 ``(slots, max blocks)``, `NULL_BLOCK` beyond `num_blocks`."""
        self.num_blocks: IntArray = np.zeros(num_slots, dtype=np.int64)
        """Blocks in each row, ``(slots,)``; rows of empty seats keep their last contents until somebody sits down."""
        self.token_ids = token_ids
        self._count = np.arange(num_slots, dtype=np.int64)

    @classmethod
    def of(cls, scheduler: Scheduler) -> PersistentBatch:
        """The batch for a scheduler, which must track blocks; it shares the scheduler's token rows, if it keeps any."""
        config = scheduler.config
        # A batch that reserves at admission gives each row the longest prompt + the longest output of all its rows.
        longest = config.max_model_len * (2 if scheduler.policy.reserves else 1)
        return cls(
            config.max_num_seqs,
            config.max_model_len,
            config.block_size,
            max_blocks=min(-(-longest // config.block_size), config.usable_blocks),
            token_ids=scheduler.seats.token_ids,
            padding_side=config.padding_side,
        )

    def apply(self, plan: StepPlan) -> BlockUpdates:
        """Append the plan's new blocks to the rows of their requests; an admission starts its row anew.

        Returns the entries written, no others are. Raises RuntimeError when a plan was left out or came twice.
        """
        if plan.steady_blocks is None and not plan.new_blocks:
            return _NO_UPDATES
        requests, at, blocks = plan.steady_blocks or ([], [], [])
        slots, columns, ids = [request.slot for request in requests], list(at), list(blocks)
        self._append(slots, columns)
        for request, first, granted in plan.new_blocks:
            written = granted if first else granted + [NULL_BLOCK] * self._stale(request.slot, len(granted))
            if first:
                self._append([request.slot], [first])
            self.num_blocks[request.slot] = first + len(granted)
            slots += [request.slot] * len(written)
            columns += range(first, first + len(written))
            ids += written
        updates = BlockUpdates(_ints(slots), _ints(columns), np.array(ids, dtype=np.int32))
        self.block_table[updates.slots, updates.columns] = updates.ids
        return updates

    def build(self, plan: StepPlan, rows: PlanRows) -> FlatBatch:
        """The plan as one flat row of tokens (layout ``ragged``), padded to the graph size that the plan names.

        `rows` is ``scheduler.rows(plan)``.
        """
        return self._flat(rows.slots, rows.computed, rows.scheduled, padding=plan.padding_graph)

    def build_padded(self, plan: StepPlan, rows: PlanRows, burning: Collection[Request] = ()) -> PaddedBatch:
        """The plan as a rectangle (layout ``padded``).

        Args:
            plan: the newest plan.
            rows: ``scheduler.rows(plan)``.
            burning: ``scheduler.burning()`` as it is when the step has just been planned. Raises RuntimeError when they
                are not the plan's.
        """
        if len(rows.requests) + len(burning) != plan.rows:
            raise RuntimeError(f"{len(rows.requests)} rows + {len(burning)} burning are not the plan's {plan.rows}")
        requests = [*rows.requests, *burning]
        return self._padded(
            np.concatenate((rows.slots, _ints(request.slot for request in burning))),
            np.concatenate((rows.computed, _ints(request.num_tokens - 1 for request in burning))),
            np.concatenate((rows.scheduled, np.ones(len(burning), dtype=np.int64))),
            _ints(request.pad for request in requests),
            len(rows.requests),
        )

    def _append(self, slots: list[int], columns: list[int]) -> None:
        """Count one block more for each slot, after a check that it comes where the row ends."""
        if (self.num_blocks[slots] != columns).any():
            raise RuntimeError("a block does not follow the row's last one: apply every plan once, in order")
        self.num_blocks[slots] += 1

    def _stale(self, slot: int, granted: int) -> int:
        """Entries that the slot's last holder leaves behind beyond the `granted` blocks of the new one."""
        return max(int(self.num_blocks[slot]) - granted, 0)

    def _flat(
        self, slots: IntArray, computed: IntArray, scheduled: IntArray, *, padding: int = 0,
        drafts: IntArray | None = None,
    ) -> FlatBatch:  # fmt: skip
        count = len(slots)
        ends = np.cumsum(scheduled)
        total = int(ends[-1])
        req_indices = np.repeat(self._count[:count], scheduled)
        positions = np.arange(total)
        positions += (computed - ends + scheduled)[req_indices]
        seats = slots[req_indices]
        query_start_loc = np.full(self.num_slots + 1, total, dtype=np.int32)
        query_start_loc[0] = 0
        query_start_loc[1 : count + 1] = ends
        return FlatBatch(
            input_ids=_extend(self._tokens(seats, positions), padding, PAD_TOKEN),
            positions=_extend(positions, padding, 0),
            query_start_loc=query_start_loc,
            seq_lens=(computed + scheduled).astype(np.int32),
            block_table=self._table(slots),
            slot_mapping=_extend(self._slots(seats, positions), padding, NO_SLOT),
            logits_indices=ends - 1 if drafts is None else _last_rows(ends, drafts + 1),
            req_indices=req_indices,
            slots=slots,
        )

    def _padded(
        self, slots: IntArray, computed: IntArray, scheduled: IntArray, pads: IntArray, num_requests: int
    ) -> PaddedBatch:
        cols = int(scheduled.max())
        left = self.padding_side == "left"
        ends = np.full(len(slots), cols) if left else scheduled
        kv_start = pads if left else np.zeros_like(pads)
        offsets = np.arange(cols) - (ends - scheduled)[:, None]
        is_token = (offsets >= 0) & (offsets < scheduled[:, None])
        positions = np.where(is_token, computed[:, None] + offsets, 0)
        places = (kv_start + computed)[:, None] + offsets
        writes = is_token | ((places >= 0) & (places < kv_start[:, None]))
        seats = slots[:, None]
        context = computed + scheduled
        return PaddedBatch(
            input_ids=np.where(is_token, self._tokens(seats, positions), PAD_TOKEN).astype(np.int32),
            positions=positions,
            is_token=is_token,
            slot_mapping=np.where(writes, self._slots(seats, np.where(writes, places, 0)), NO_SLOT),
            logits_indices=np.arange(len(slots)) * cols + ends - 1,
            query_lens=scheduled,
            seq_lens=context.astype(np.int32),
            kv_start=kv_start,
            block_table=self._table(slots),
            slots=slots,
            num_requests=num_requests,
            width=int((kv_start + context).max()),
            block_size=self.block_size,
        )

    def _tokens(self, seats: IntArray, positions: IntArray) -> TokenArray:
        """Token ids at `positions` of the requests in `seats` (broadcast), one gather over the flattened rows."""
        if self.token_ids is None:
            return np.full(positions.shape, UNKNOWN_TOKEN, dtype=np.int32)
        tokens: TokenArray = self.token_ids.reshape(-1).take(seats * self.token_ids.shape[1] + positions)
        return tokens

    def _slots(self, seats: IntArray, places: IntArray) -> IntArray:
        """Cache slots of the KV positions `places` of the requests in `seats` (broadcast)."""
        index, offset = np.divmod(places, self.block_size)
        blocks = self.block_table.reshape(-1).take(seats * self.block_table.shape[1] + index)
        slots: IntArray = blocks * np.int64(self.block_size) + offset
        return slots

    def _table(self, slots: IntArray) -> Int32Array:
        """The block table's rows of these seats, as wide as the longest."""
        rows: Int32Array = self.block_table[:, : int(self.num_blocks[slots].max())][slots]
        return rows


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request of a batch typed in by hand.

    Attributes:
        name: how errors call it.
        token_ids: prompt and outputs so far.
        computed: tokens whose K/V is in the cache before the step.
        scheduled: tokens granted in this step.
        block_table: its block ids, in logical order (block 0 is the null block and belongs to nobody).
        pad: how much longer the longest prompt of its `static` batch is (padded layout only); pads on the left occupy
            so many KV positions before its own.
        draft_tokens: how many of the scheduled tokens are guesses to be verified (flat layout only).
    """

    name: str
    token_ids: Sequence[int]
    computed: int
    scheduled: int
    block_table: Sequence[int]
    pad: int = 0
    draft_tokens: int = 0

    def check(self, block_size: int) -> None:
        """Raise InputError unless the step can run with what was typed."""
        known, end = len(self.token_ids), self.computed + self.scheduled
        held, need = len(self.block_table), -(-(self.pad + end) // block_size)
        problems = (
            (self.computed < 0 or self.pad < 0, f"computed {self.computed}, pad {self.pad}; expected both >= 0"),
            (self.scheduled < 1, f"scheduled is {self.scheduled}; expected at least 1"),
            (end > known, f"computed {self.computed} + scheduled {self.scheduled} exceed its {known} known tokens"),
            (not 0 <= self.draft_tokens < self.scheduled, f"draft_tokens is {self.draft_tokens}; expected < scheduled"),
            (held < need, f"block_table has {held} blocks of {block_size} tokens; expected at least {need}"),
            (min(self.block_table, default=1) < 1, "block_table has an id below 1 (0 is the null block)"),
        )
        for is_so, problem in problems:
            if is_so:
                raise InputError(f"request {self.name}: {problem}")


def flat_batch(
    requests: Sequence[BatchRequest], block_size: int, *, max_num_seqs: int | None = None, padded_to: int | None = None
) -> FlatBatch:
    """The flat batch of requests typed in by hand, in the order given; raises InputError for an impossible one.

    Args:
        requests: at least one.
        block_size: tokens a KV block.
        max_num_seqs: slots, for the length of `FlatBatch.query_start_loc`; default: as many as requests.
        padded_to: captured graph size to pad to.
    """
    batch, slots, computed, scheduled = _typed(requests, block_size, max_num_seqs or len(requests))
    total = int(scheduled.sum())
    if padded_to is not None and padded_to < total:
        raise InputError(f"padded_to is {padded_to}; expected at least the {total} scheduled tokens")
    drafts = _ints(request.draft_tokens for request in requests)
    return batch._flat(slots, computed, scheduled, padding=(padded_to or total) - total, drafts=drafts)


def padded_batch(
    requests: Sequence[BatchRequest], block_size: int, *, padding_side: PaddingSide = "left"
) -> PaddedBatch:
    """The rectangle of requests typed in by hand, in the order given; raises InputError for an impossible one."""
    batch, slots, computed, scheduled = _typed(requests, block_size, len(requests))
    batch.padding_side = padding_side
    return batch._padded(slots, computed, scheduled, _ints(request.pad for request in requests), len(requests))


def ragged_mask(query_start_loc: npt.ArrayLike, seq_lens: npt.ArrayLike) -> BoolArray:
    """Which keys each row of a flat batch attends to, bool ``(rows, total keys)``; to be shown, not to compute with.

    The keys are those of request 0, then of request 1 and so on, `seq_lens` each; a request's rows are its last ones.
    Padding rows are left out.
    """
    lens = np.asarray(seq_lens, dtype=np.int64)
    starts = np.asarray(query_start_loc, dtype=np.int64)[: len(lens) + 1]
    query_lens = np.diff(starts)
    key_ends = np.cumsum(lens)
    last = np.repeat(key_ends - starts[1:], query_lens) + np.arange(starts[-1])
    first = np.repeat(key_ends - lens, query_lens)
    keys = np.arange(key_ends[-1])
    mask: BoolArray = (keys >= first[:, None]) & (keys <= last[:, None])
    return mask


def _typed(
    requests: Sequence[BatchRequest], block_size: int, num_slots: int
) -> tuple[PersistentBatch, IntArray, IntArray, IntArray]:
    """A persistent batch with request i in slot i, and the step's slots, computed and scheduled tokens."""
    if not 1 <= len(requests) <= num_slots:
        raise InputError(f"{len(requests)} requests for {num_slots} slots; expected at least 1 request, one a slot")
    for request in requests:
        request.check(block_size)
    length = max(len(request.token_ids) for request in requests)
    columns = max(len(request.block_table) for request in requests)
    token_ids = np.full((num_slots, length), PAD_TOKEN, dtype=np.int32)
    batch = PersistentBatch(num_slots, length, block_size, max_blocks=columns, token_ids=token_ids)
    for slot, request in enumerate(requests):
        token_ids[slot, : len(request.token_ids)] = request.token_ids
        batch.num_blocks[slot] = held = len(request.block_table)
        batch.block_table[slot, :held] = request.block_table
    slots = np.arange(len(requests), dtype=np.int64)
    return batch, slots, _ints(r.computed for r in requests), _ints(r.scheduled for r in requests)


def _last_rows(ends: IntArray, counts: IntArray) -> IntArray:
    """The last ``counts[i]`` rows of each request, whose rows end before ``ends[i]``."""
    rows: IntArray = np.repeat(ends - np.cumsum(counts), counts) + np.arange(counts.sum())
    return rows


def _extend(rows: npt.NDArray[Number], padding: int, value: int) -> npt.NDArray[Number]:
    """The array with `padding` more entries of `value`."""
    if not padding:
        return rows
    return np.concatenate((rows, np.full(padding, value, dtype=rows.dtype)))


def _ints(numbers: Iterable[int]) -> IntArray:
    return np.fromiter(numbers, dtype=np.int64)


_NO_UPDATES = BlockUpdates(_ints(()), _ints(()), np.zeros(0, dtype=np.int32))
