"""The device's side of a step: token table, inputs, model, sampling, in the order in which steps were planned."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scheduler.batch import PAD_TOKEN, BlockUpdates, FlatBatch, PaddedBatch
from scheduler.plan import IntArray
from scheduler.request import TokenArray

from .clock import Clock
from .kv_cache import KvCache
from .logprobs import Logprobs
from .model import Model
from .ops.base import FlatAttention, PaddedAttention, StepInputs
from .sampler import SamplingBatch, sample

BoolArray = npt.NDArray[np.bool_]


class DeviceStep(NamedTuple):
    """What the device needs to run a step; everything in it is its own, nothing changes later. N requests.

    Attributes:
        batch: the flat row or the rectangle. Its `input_ids` are not used: a token sampled by a step in flight is known
            to the device alone. None: a flat row that the device lays out itself.
        updates: new entries of the block table.
        seated: ``(slot, known tokens)`` of requests that take a seat in this step.
        slots, computed, scheduled: seat, tokens computed before and tokens scheduled of each request, ``(N,)``.
        padding: rows of graph padding.
        samples: whether its sampled token counts (a chunk in mid-prompt samples nothing that does), ``(N,)``.
        sampling: how to sample; None: all greedy.
        forced: tokens that stand instead of the sampled ones, ``(N,)``, -1 where none does; None: none at all.
    """

    batch: FlatBatch | PaddedBatch | None
    updates: BlockUpdates
    seated: list[tuple[int, TokenArray]]
    slots: IntArray
    computed: IntArray
    scheduled: IntArray
    padding: int
    samples: BoolArray
    sampling: SamplingBatch | None
    forced: TokenArray | None

    @property
    def places(self) -> IntArray:
        """Position of each sampled token, ``(N,)``."""
        places: IntArray = self.computed + self.scheduled
        return places


class StepResult(NamedTuple):
    """What came of a step.

    Attributes:
        token_ids: sampled, int32 ``(N,)``.
        logprobs: of the rows that asked.
        started_s, ended_s: when the device began and ended, seconds on the engine's clock.
        device_s: how long it worked, seconds.
    """

    token_ids: TokenArray
    logprobs: Logprobs | None
    started_s: float
    ended_s: float
    device_s: float


class Launched(Protocol):
    """A step handed to the device."""

    def wait(self) -> StepResult:
        """Its results, once they are there; raises what went wrong."""


class Device(Protocol):
    """Runs steps one after the other.

    Attributes:
        lays_out: it makes a flat row's tensors itself, from tables it keeps; steps need bring none.
    """

    lays_out: bool

    def launch(self, step: DeviceStep) -> Launched:
        """Hand over a step."""

    def close(self) -> None:
        """No more steps will come."""


class Runner:
    """Runs a step by torch operations, on whichever device the model is.

    Args:
        model, cache: weights and K/V.
        num_slots, max_model_len: shape of the token table, which holds every seated request's token ids, by seat and
            position; sampled tokens are written there and read from there by the next step.
        device: torch's.
    """

    lays_out = False
    """See `Device`."""

    def __init__(
        self, model: Model, cache: KvCache, *, num_slots: int, max_model_len: int, device: torch.device
    ) -> None:
        self._model = model
        self._cache = cache
        self._device = device
        self._columns = max_model_len
        self._tokens = torch.zeros(num_slots * max_model_len, dtype=torch.int32, device=device)

    @torch.inference_mode()
    def run(self, step: DeviceStep) -> tuple[Tensor, Logprobs | None]:
        """Compute a step; returns the sampled token ids ``(N,)`` on the device, and log-probabilities."""
        self._seat(step)
        logits = self._logits(step)
        sampled = sample(logits[: len(step.slots)], step.sampling)
        token_ids = sampled.token_ids
        if step.forced is not None:
            forced = self._to(step.forced)
            token_ids = torch.where(forced >= 0, forced, token_ids)
        self._keep(step, token_ids)
        return token_ids, sampled.logprobs

    def _logits(self, step: DeviceStep) -> Tensor:
        return self._model.forward(self._inputs(step), self._cache)

    def _seat(self, step: DeviceStep) -> None:
        for slot, tokens in step.seated:
            start = slot * self._columns
            self._tokens[start : start + len(tokens)] = self._to(tokens)

    def _keep(self, step: DeviceStep, token_ids: Tensor) -> None:
        """Write the tokens that count to their places."""
        places = step.slots * self._columns + step.places
        if not step.samples.all():
            places, token_ids = places[step.samples], token_ids[self._to(np.flatnonzero(step.samples))]
        self._tokens[self._to(places)] = token_ids.to(torch.int32)

    def _inputs(self, step: DeviceStep) -> StepInputs:
        batch = step.batch
        assert batch is not None
        if isinstance(batch, PaddedBatch):
            input_ids = self._rectangle_ids(batch)
            attention: FlatAttention | PaddedAttention = self._padded(batch)
        else:
            input_ids, attention = self._flat_ids(batch), self._flat(batch)
        return StepInputs(
            input_ids=input_ids,
            positions=self._to(batch.positions.reshape(-1)),
            slot_mapping=self._to(batch.slot_mapping.reshape(-1)),
            logits_indices=self._to(batch.logits_indices),
            attention=attention,
        )

    def _flat_ids(self, batch: FlatBatch) -> Tensor:
        """Token ids of a flat row, from the token table; padding rows get the pad token."""
        real = len(batch.req_indices)
        places = batch.slots[batch.req_indices] * self._columns + batch.positions[:real]
        ids = self._tokens[self._to(places)]
        padding = len(batch.positions) - real
        return torch.cat((ids, ids.new_full((padding,), PAD_TOKEN))) if padding else ids

    def _rectangle_ids(self, batch: PaddedBatch) -> Tensor:
        places = np.where(batch.is_token, batch.slots[:, None] * self._columns + batch.positions, 0).reshape(-1)
        return self._tokens[self._to(places)].masked_fill_(self._to(~batch.is_token.reshape(-1)), PAD_TOKEN)

    def _flat(self, batch: FlatBatch) -> FlatAttention:
        count = len(batch.slots)
        starts = batch.query_start_loc[: count + 1]
        return FlatAttention(
            self._to(starts), self._to(batch.seq_lens), self._to(batch.block_table),
            int(np.diff(starts).max()), int(batch.seq_lens.max()), batch,
        )  # fmt: skip

    def _padded(self, batch: PaddedBatch) -> PaddedAttention:
        rows, cols = batch.positions.shape
        mask = self._to(batch.attention_mask(padding_sees_first=True))
        return PaddedAttention(batch, self._to(batch.block_table), mask, rows, cols, batch.width)

    def _to(self, array: npt.NDArray[np.generic]) -> Tensor:
        """The array on the device (on the CPU: the same memory)."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


class _Done:
    """A step whose results are there."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def wait(self) -> StepResult:
        return self._result


class _Coming:
    """A step in another thread."""

    def __init__(self, future: Future[StepResult]) -> None:
        self._future = future

    def wait(self) -> StepResult:
        return self._future.result()


class CpuDevice:
    """The CPU as a device: at once in the caller's thread, or beside it in one of its own (`beside`)."""

    def __init__(self, runner: Runner, clock: Clock, *, threads: int, beside: bool) -> None:
        self.lays_out = runner.lays_out
        self._runner = runner
        self._clock = clock
        self._threads = threads
        torch.set_num_threads(threads)
        # OpenMP keeps the number of threads by calling thread, so the new one must be told too
        self._pool = ThreadPoolExecutor(1, "device", lambda: torch.set_num_threads(threads)) if beside else None

    def launch(self, step: DeviceStep) -> Launched:
        """Run a step, or start to."""
        if self._pool is None:
            return _Done(self._run(step))
        return _Coming(self._pool.submit(self._run, step))

    def close(self) -> None:
        """Stop the thread, if there is one."""
        if self._pool is not None:
            self._pool.shutdown()

    def _run(self, step: DeviceStep) -> StepResult:
        started_s = self._clock.now()
        token_ids, logprobs = self._runner.run(step)
        sampled = token_ids.numpy().astype(np.int32)
        ended_s = self._clock.now()
        return StepResult(sampled, logprobs, started_s, ended_s, ended_s - started_s)
