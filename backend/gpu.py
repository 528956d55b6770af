"""A GPU as a device: inputs made there by kernels, decodes replayed as CUDA graphs, nothing waits for the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scheduler.config import SchedulerConfig
from scheduler.plan import IntArray
from scheduler.pool import NULL_BLOCK

from .clock import Clock
from .device import DeviceStep, Launched, Runner, StepResult
from .kernels.prepare import StepTensors, append_blocks, prepare_step, store_tokens
from .kv_cache import KvCache
from .logprobs import Logprobs
from .model import Model
from .ops.base import FlatAttention, StepInputs

DROPPED = -1
"""Position of a sampled token that means nothing."""

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Records what a function launches: how to replay it, and the result that each replay makes anew."""


class GpuRunner(Runner):
    """Runs flat steps from tables that live on the device: token ids and block ids by seat.

    A step sends each request's seat, computed tokens and first row, and the block ids that were appended; those go
    first, so that their copy overlaps with the rest of the preparation. Rectangles go the way of `Runner`.

    Args:
        model, cache: weights and K/V, on `device`.
        config: of the scheduler.
        device: torch's; a CPU only in Triton's interpreter.
    """

    lays_out = True

    def __init__(self, model: Model, cache: KvCache, config: SchedulerConfig, device: torch.device) -> None:
        super().__init__(
            model, cache, num_slots=config.max_num_seqs, max_model_len=config.max_model_len, device=device
        )  # fmt: skip
        self._block_size = config.block_size
        self._token_table = self._tokens.view(config.max_num_seqs, config.max_model_len)
        columns = min(-(-2 * config.max_model_len // config.block_size), config.usable_blocks)
        self._blocks = torch.zeros((config.max_num_seqs, columns), dtype=torch.int32, device=device)
        self._graphs: dict[int, DecodeGraph] = {}
        self.device = device

    @torch.inference_mode()
    def run(self, step: DeviceStep) -> tuple[Tensor, Logprobs | None]:
        """Compute a step; see `Runner.run`."""
        if len(step.updates.ids):
            packed = self._to(np.stack([step.updates.slots, step.updates.columns, step.updates.ids]).astype(np.int32))
            append_blocks(self._blocks, packed[0], packed[1], packed[2])
        return super().run(step)

    @torch.inference_mode()
    def capture(self, sizes: tuple[int, ...], record: Record | None = None) -> None:
        """Record a decode step of each size as a CUDA graph, the largest first: the others then share its memory.

        Only before any request runs: recording computes a token of its own.
        """
        if not sizes:
            return
        record = GraphRecorder(self.device).record if record is None else record
        shared = None
        for size in sorted(sizes, reverse=True):
            self._graphs[size] = DecodeGraph(self, size, record, shared)
            shared = self._graphs[max(sizes)].logits
        for stored in (self._cache.keys, self._cache.values):
            stored[:, NULL_BLOCK].zero_()  # where that token went

    def decode_inputs(self, tensors: StepTensors, requests: Requests) -> StepInputs:
        """A step of one row a request, made in `tensors` from `requests`; bounds hold for any context."""
        return self._made(tensors, requests, max_query_len=1, max_seq_len=self._columns)

    def forward(self, inputs: StepInputs) -> Tensor:
        """Logits."""
        return self._model.forward(inputs, self._cache)

    def _logits(self, step: DeviceStep) -> Tensor:
        if step.batch is not None:
            return super()._logits(step)
        requests = self._requests(step)
        rows = int(step.scheduled.sum()) + step.padding
        graph = self._graphs.get(rows)
        if graph is not None and len(step.slots) + step.padding == rows:
            return graph.replay(requests)
        tensors = StepTensors.empty(rows, len(step.slots), self._device)
        longest = int((step.computed + step.scheduled).max())
        return self.forward(self._made(tensors, requests, int(step.scheduled.max()), longest))

    def _requests(self, step: DeviceStep) -> Requests:
        """The three numbers of each request, in one copy."""
        ends = np.cumsum(step.scheduled)
        packed = np.zeros((3, len(step.slots) + 1), dtype=np.int32)
        packed[0, :-1], packed[1, :-1], packed[2, 1:] = step.slots, step.computed, ends
        sent = self._to(packed)
        return Requests(sent[0, :-1], sent[1, :-1], sent[2])

    def _made(self, tensors: StepTensors, requests: Requests, max_query_len: int, max_seq_len: int) -> StepInputs:
        slots, computed, starts = requests.slots, requests.computed, requests.query_start_loc
        prepare_step(slots, computed, starts, self._token_table, self._blocks, self._block_size, tensors)
        attention = FlatAttention(
            starts, tensors.seq_lens, self._blocks, max_query_len, max_seq_len, host=None, slots=slots
        )  # fmt: skip
        return StepInputs(
            tensors.input_ids, tensors.positions, tensors.slot_mapping, tensors.logits_indices, attention
        )  # fmt: skip

    def _to(self, array: npt.NDArray[np.generic]) -> Tensor:
        """The array on the device, by way of pinned memory: from other memory the host would wait for earlier steps."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _keep(self, step: DeviceStep, token_ids: Tensor) -> None:
        places: IntArray = np.where(step.samples, step.places, DROPPED)
        sent = self._to(np.stack([step.slots, places]).astype(np.int32))
        store_tokens(self._token_table, sent[0], sent[1], token_ids)


@dataclass(frozen=True, slots=True)
class Requests:
    """Seat, computed tokens ``(N,)`` and first row ``(N + 1,)`` of each request, int32 on the device."""

    slots: Tensor
    computed: Tensor
    query_start_loc: Tensor


class GraphRecorder:
    """Records launches as CUDA graphs, all on one stream and in one pool: only so do they share their memory."""

    def __init__(self, device: torch.device) -> None:
        # capturing must not happen on the default stream, warming up included
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own gap
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """See `Record`."""
        self._stream.wait_stream(torch.cuda.current_stream())  # where everything that `run` reads was made
        with torch.cuda.stream(self._stream):
            run()  # compiles the kernels and makes cuBLAS's workspace, which capturing could not
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # other threads may go on with other devices or engines
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = run()
        return graph.replay, result


class DecodeGraph:
    """A decode step of a fixed number of rows, recorded once and replayed; requests that are missing have no rows.

    Logits go to `shared`, the largest graph's: a buffer each would take gigabytes where vocabularies are large.
    """

    def __init__(self, runner: GpuRunner, size: int, record: Record, shared: Tensor | None) -> None:
        device = runner.device
        self._requests = Requests(*(torch.zeros(size + extra, dtype=torch.int32, device=device) for extra in (0, 0, 1)))
        # one request while it is recorded: with none, the rows that get logits would lie before the first
        self._requests.query_start_loc[1:] = 1
        self._tensors = StepTensors.empty(size, size, device)  # kept: a replay writes where they were

        def run() -> Tensor:
            logits = runner.forward(runner.decode_inputs(self._tensors, self._requests))
            return logits if shared is None else shared[:size].copy_(logits)

        self._replay, self.logits = record(run)

    def replay(self, requests: Requests) -> Tensor:
        """Logits of these requests, ``(N, V)``; valid until the next replay."""
        mine, count = self._requests, len(requests.slots)
        mine.slots[:count].copy_(requests.slots)
        mine.computed[:count].copy_(requests.computed)
        mine.query_start_loc[: count + 1].copy_(requests.query_start_loc)
        mine.query_start_loc[count + 1 :].copy_(requests.query_start_loc[-1:].expand(len(mine.slots) - count))
        self._replay()
        return self.logits[:count]


class CudaDevice:
    """Launches steps one after the other on the current stream; a step is waited for by its event alone."""

    def __init__(self, runner: Runner, clock: Clock, device: torch.device) -> None:
        self.lays_out = runner.lays_out
        self._runner = runner
        self._clock = clock
        self._device = device
        with torch.cuda.device(device):
            mark = _event()
            mark.record()
            mark.synchronize()
        self._mark: tuple[torch.cuda.Event, float] = (mark, clock.now())

    def launch(self, step: DeviceStep) -> Launched:
        """Queue a step."""
        with torch.cuda.device(self._device):  # each thread has a current device of its own
            begin, end = _event(), _event()
            begin.record()
            token_ids, logprobs = self._runner.run(step)
            host = torch.empty(len(token_ids), dtype=torch.int32, pin_memory=True)
            host.copy_(token_ids.to(torch.int32), non_blocking=True)  # of one type, so that no copy of it is between
            end.record()
        return _Queued(self, begin, end, host, logprobs)

    def times(self, begin: torch.cuda.Event, end: torch.cuda.Event, *, ended_now: bool) -> tuple[float, float, float]:
        """When a step that is over began and ended, seconds on the engine's clock, and how long it took.

        Told from the end of the step before, so that no difference of events grows beyond what milliseconds in float32
        can tell. A step that the host saw end (`ended_now`) ended when it did: the clocks of host and GPU drift apart.
        """
        mark, mark_s = self._mark
        device_s = begin.elapsed_time(end) / 1000
        began_s = mark_s + mark.elapsed_time(begin) / 1000
        ended_s = began_s + device_s
        now_s = self._clock.now()
        if ended_now or ended_s > now_s:
            began_s, ended_s = max(now_s - device_s, mark_s), now_s
        self._mark = (end, ended_s)
        return began_s, ended_s, device_s

    def close(self) -> None:
        """Wait for what is queued."""
        torch.cuda.synchronize(self._device)


class _Queued:
    """A step on the stream."""

    def __init__(
        self, device: CudaDevice, begin: torch.cuda.Event, end: torch.cuda.Event, host: Tensor,
        logprobs: Logprobs | None,
    ) -> None:  # fmt: skip
        self._device = device
        self._begin = begin
        self._end = end
        self._host = host
        self._logprobs = logprobs

    def wait(self) -> StepResult:
        """Its results."""
        running = not self._end.query()  # type: ignore[no-untyped-call]  # torch's own gap
        self._end.synchronize()
        began_s, ended_s, device_s = self._device.times(self._begin, self._end, ended_now=running)
        return StepResult(self._host.numpy(), self._logprobs, began_s, ended_s, device_s)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own gap
