"""The recorder: writes down what each step was, at a cost that follows what changes in it."""

from __future__ import annotations

import json
import math
import os
import tempfile
import weakref
from array import array
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scheduler.request import FinishReason, Request, RequestStatus

from . import schema
from .archive import to_parquet
from .schema import DECODE, FINISH_REASONS, PADDING, PREEMPTED, PREFILL, QUEUED
from .store import NAMES, RowFile, describe_tables, lock, prepare_folder, remove_folder, write_meta

if TYPE_CHECKING:
    from scheduler.plan import StepPlan

    from .trace import Trace

_NO_SPAN = -1
_HELD, _ABORT, _ERROR = RequestStatus.HELD, FinishReason.ABORT, FinishReason.ERROR  # members are slow to look up
_REASON_CODES: dict[FinishReason | None, int] = {
    None: FINISH_REASONS.index("none"),
    **{reason: FINISH_REASONS.index(reason.value) for reason in FinishReason},
}
_NOBODY = (0, 0, 0)
_NONE: Set[int] = frozenset()
_pack_step = schema.STEPS.packer.pack
_pack_span = schema.SPAN_EVENTS.packer.pack
_pack_request = schema.REQUESTS.packer.pack
_pack_gap = schema.GAPS.packer.pack
_pack_plan = schema.PLANS.packer.pack
_pack_block = schema.BLOCKS.packer.pack


class _Live:
    """What the recorder remembers of a request from its first seat until it ends."""

    __slots__ = (
        "delivered", "first_token_s", "index", "kind", "last_s", "preemptions", "request", "scheduled_s", "slot",
        "tick", "times", "tokens",
    )  # fmt: skip

    def __init__(self, request: Request, scheduled_s: float, times: array[float] | None) -> None:
        self.request = request
        self.index = request.index
        self.kind = _NO_SPAN
        self.slot = -1
        self.tokens = 0
        """Tokens of the span that is open."""
        self.delivered = 0
        self.preemptions = 0
        self.tick = -1
        """While in the steady prefix: ticks that had passed when it was last looked at; else -1."""
        self.scheduled_s = scheduled_s
        self.first_token_s = math.nan
        self.last_s = math.nan
        self.times = times


class TraceRecorder:
    """Records a run step by step into a folder ``NAME.trace``; see docs/trace-format.md for the files.

    Call `arrived` when a request is handed to the scheduler, `step` once for each step after its update, in step
    order, `idle` for an empty plan, `aborted` after an abort, and `close` at the end. As a context manager it closes
    itself; after an exception the trace stays readable and is marked as stopped early.

    Args:
        path: the folder to write (an older trace there is replaced); None: a temporary one that lives as long as the
            recorder or the `Trace` that `close` returns.
        meta: what the run was: source, policy, layout, config, model, hardware, ... (JSON-able).
        slots_total: seats.
        streams: tokens are delivered as they come (`Scheduler.streams`); else all at once when a request ends.
        flush_every: steps for one write; 1 where others watch the run.
        token_times: keep every token's delivery time.
        plans: keep the plan of every step (`Trace.plan_at`) and, when the scheduler tracks blocks, who holds which.

    Raises:
        UserError: the folder cannot be made, or the disk is full.
    """

    def __init__(
        self,
        path: str | Path | None,
        meta: Mapping[str, Any],
        *,
        slots_total: int,
        streams: bool = True,
        flush_every: int = 1024,
        token_times: bool = False,
        plans: bool = False,
    ) -> None:
        self._temporary = path is None
        self.path = Path(tempfile.mkdtemp(prefix="batchscope-", suffix=".trace") if path is None else path)
        self._finalizer = weakref.finalize(self, remove_folder, str(self.path), os.getpid()) if path is None else None
        self._streams, self._flush_every = streams, flush_every
        self._keep_times, self._keep_plans = token_times, plans
        self._meta: dict[str, Any] = {
            **meta, **describe_tables(), "slots_total": slots_total, "streams": streams, "token_times": token_times,
            "plans": plans, "complete": False, "closed": False,
        }  # fmt: skip
        self._open_files()
        self._live: dict[int, _Live] = {}
        self._queued: dict[int, float] = {}
        self._gone: set[int] = set()
        self._postponed: list[Request | StepPlan] = []
        self._burning: list[_Live] = []
        self._fresh: list[_Live] = []
        self._last_step, self._end_s = -1, 0.0
        self._num_held = self._num_steady = 0
        self._ticks, self._tick_s = 0, 0.0
        self._tick_times: array[float] | None = array("d") if token_times and streams else None
        self._ended = False

    def _open_files(self) -> None:
        prepare_folder(self.path, self._meta.get("source"))
        write_meta(self.path, self._meta)
        files = {name: RowFile(self.path / f"{name}.rows") for name in schema.RECORDED}
        lock(files["steps"])
        self._files = files
        self._names = RowFile(self.path / NAMES)
        self._steps, self._spans, self._requests = files["steps"].rows, files["spans"].rows, files["requests"].rows
        self._gaps, self._plans, self._blocks = files["gaps"].rows, files["plans"].rows, files["blocks"].rows
        self._tokens = files["tokens"].rows

    def step(
        self, plan: StepPlan, t_start_s: float, t_end_s: float, device_s: float, host_s: float, padding_s: float
    ) -> None:
        """Record a step that has been planned, run and updated.

        Args:
            plan: the step.
            t_start_s: when it began, seconds on the executor's clock.
            t_end_s: when its results were in, seconds.
            device_s: device time, seconds.
            host_s: host time, seconds.
            padding_s: what of its cost was spent on padding, seconds.
        """
        step, steps, finished = plan.step, self._steps, plan.finished
        quiet = plan.quiet and not finished
        turnover = _NOBODY if quiet else (len(plan.admitted), len(plan.preempted), len(finished))
        steps.append(_pack_step(step, t_start_s, t_end_s, device_s, host_s, padding_s, *plan.facts, *turnover))
        if self._keep_plans:
            self._log_plan(plan)
        if not (quiet and self._streams):
            self._change(plan, t_start_s, t_end_s)
        else:  # steady decoding, and perhaps prompts that are not through: no span begins or ends
            if plan.num_steady:
                self._gaps.append(_pack_gap(step, t_end_s - self._tick_s, plan.num_steady))
                self._tick(t_end_s)
            if plan.tail:
                self._continue_prompts(plan)
        self._last_step = step
        self._end_s = t_end_s
        if self._postponed:
            self._do_postponed(t_end_s)
        if len(steps) >= self._flush_every:
            self.flush()

    def arrived(self, request: Request, now_s: float) -> None:
        """A request was handed to the scheduler (it has its `index` now)."""
        index = request.index
        if request.queued_s != now_s:
            self._queued[index] = now_s
        self._requests.append(_pack_request(
            index, request.arrival_s, now_s, math.nan, math.nan, math.nan, request.num_prompt_tokens, 0, 0, 0, 0
        ))  # fmt: skip
        self._spans.append(_pack_span(self._last_step + 1, now_s, index, -1, 0, QUEUED, 1))
        if request.request_id != index and str(request.request_id) != str(index):
            line = json.dumps({"request": index, "name": str(request.request_id)}, ensure_ascii=False)
            self._names.rows.append(line.encode() + b"\n")
        if len(self._requests) >= self._flush_every:
            self.flush()

    def aborted(self, request: Request, now_s: float) -> None:
        """`Scheduler.abort` was called for a request. Where that takes effect later, so does the record."""
        if request.unfinished:
            self._postponed.append(request)
            return
        if any(burnt.request is request for burnt in self._burning):  # its results are out: nothing left to abort
            return
        self._end_outside(request, now_s)
        if self._flush_every == 1:
            self.flush()

    def idle(self, plan: StepPlan, now_s: float) -> None:
        """An empty plan: no step, but it may have ended requests, and arrivals and aborts stand in it."""
        if plan.step > self._last_step + 1:  # the step before is still in flight
            self._postponed.append(plan)
            return
        for request in plan.preempted:
            self._preempt(request, self._last_step + 1)
        for request in plan.finished:
            self._end_outside(request, now_s)
        if self._keep_plans:
            self._log_events(plan, plan.step)

    def annotate(self, **facts: Any) -> None:
        """Add facts to the meta that only the run itself could show; written at the end."""
        self._meta.update(facts)

    def flush(self) -> None:
        """Write what has been collected, steps last: who reads step n finds all that belongs to it."""
        try:
            self._names.flush()
            for name in reversed(self._files):
                self._files[name].flush()
        except BaseException:
            self._close_files()  # a row may be torn: nothing may follow it
            raise

    def close(self, complete: bool = True) -> Trace:
        """End the recording and return it, ready to read.

        A complete trace in a folder of its own becomes Parquet; a temporary or an incomplete one stays as it is.
        """
        from .trace import Trace

        if not self._ended:
            self._end_open_requests()
            self.flush()
            totals = {name: os.fstat(file.fileno()).st_size // schema.RECORDED[name].dtype.itemsize
                      for name, file in self._files.items()}  # fmt: skip
            self._meta.update(complete=complete, closed=True, rows=totals, end_s=self._end_s)
            write_meta(self.path, self._meta)
            try:
                if complete and not self._temporary:
                    to_parquet(self.path, self._last_step)
            finally:
                self._close_files()
        trace = Trace.open(self.path)
        if self._finalizer is not None and self._finalizer.detach():
            trace.own_folder()
        return trace

    def __enter__(self) -> TraceRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if not self._ended:
            if kind is None:
                self.close()
            else:
                self.close(complete=False)
        return False

    def _close_files(self) -> None:
        self._ended = True
        for file in (*self._files.values(), self._names):
            file.close()

    def _continue_prompts(self, plan: StepPlan) -> None:
        for request, _, scheduled, _ in plan.tail:
            live = self._live.get(request.index)
            if live is not None:  # else it was aborted in the middle of its prompt
                live.tokens += scheduled

    def _tick(self, t_end_s: float) -> None:
        """The steady prefix delivered one token each."""
        self._ticks += 1
        self._tick_s = t_end_s
        if self._tick_times is not None:
            self._tick_times.append(t_end_s)

    def _change(self, plan: StepPlan, t_start_s: float, t_end_s: float) -> None:
        """Bring spans, requests and gaps up to date after a step in which more than steady decoding happened."""
        step = plan.step
        gaps: dict[float, int] = {}
        dropped = _NONE
        if not self._streams:
            self._hold_ended(plan)
        if not plan.quiet:
            dropped = {request.index for request in plan.dropped} if plan.dropped else _NONE
            self._move(plan, t_start_s)
        if plan.num_steady:
            self._steady_rows(plan, t_end_s, dropped, gaps)
        self._tail_rows(plan, t_end_s, dropped, gaps)
        for request in plan.finished:
            self._finish(request, step, t_end_s)
        if self._fresh:
            self._open_decodes(step + 1, t_end_s)
        if self._streams:
            for gap_s in sorted(gaps):
                self._gaps.append(_pack_gap(step, gap_s, gaps[gap_s]))

    def _move(self, plan: StepPlan, t_start_s: float) -> None:
        """Follow those who left the steady prefix, lost their seat or gained one."""
        for request in plan.left:
            live = self._live.get(request.index)
            if live is not None:  # else it ended meanwhile
                self._settle(live)
        for request in plan.preempted:
            self._preempt(request, plan.step)
        if plan.admitted:
            self._admit(plan.admitted, plan.step, t_start_s)

    def _steady_rows(self, plan: StepPlan, t_end_s: float, dropped: Set[int], gaps: dict[float, int]) -> None:
        gap_s = t_end_s - self._tick_s
        self._tick(t_end_s)
        apart = set(dropped - {row[0].index for row in plan.tail}) if dropped else set()
        for request in () if plan.quiet else plan.joined:
            index = request.index
            if plan.left and request in plan.left:  # a victim in the same plan: it did not run
                continue
            if index not in dropped:
                live = self._live[index]
                self._deliver(live, plan.step, 1, t_end_s, gaps)
                live.tick = self._ticks
            apart.add(index)
        shared = plan.num_steady - len(apart)
        if shared:
            gaps[gap_s] = gaps.get(gap_s, 0) + shared

    def _tail_rows(self, plan: StepPlan, t_end_s: float, dropped: Set[int], gaps: dict[float, int]) -> None:
        for request, _, scheduled, samples in plan.tail:
            index = request.index
            if index in dropped:
                continue
            if samples:
                self._deliver(self._live[index], plan.step, scheduled, t_end_s, gaps)
            elif index in self._live:  # else it was aborted in the middle of its prompt
                self._live[index].tokens += scheduled

    def _deliver(self, live: _Live, step: int, scheduled: int, t_end_s: float, gaps: dict[float, int]) -> None:
        """A row that sampled: one token delivered."""
        live.tokens += scheduled
        if live.kind == PREFILL:
            self._close_span(live, step, t_end_s)
            self._fresh.append(live)
        if live.delivered:
            gap_s = t_end_s - live.last_s
            gaps[gap_s] = gaps.get(gap_s, 0) + 1
        else:
            live.first_token_s = t_end_s
        live.delivered += 1
        live.last_s = t_end_s
        if live.times is not None:
            live.times.append(t_end_s)

    def _settle(self, live: _Live) -> None:
        """Take a request out of the steady prefix: the ticks it saw become its tokens."""
        if live.tick < 0:
            return
        seen = self._ticks - live.tick
        live.tokens += seen
        live.delivered += seen
        if seen:
            live.last_s = self._tick_s
            if live.times is not None and self._tick_times is not None:
                live.times.extend(self._tick_times[live.tick :])
        live.tick = -1

    def _admit(self, requests: Sequence[Request], step: int, t_start_s: float) -> None:
        begin_s = max(t_start_s, self._end_s)  # with two steps in flight they overlap on the host, not in the seats
        for burnt in self._burning:  # a batch that lets its rows burn takes nobody: it must be over
            self._close_span(burnt, step - 1, self._end_s)
        self._burning.clear()
        for request in requests:
            index = request.index
            if index in self._gone:
                continue
            live = self._live.get(index)
            if live is None:
                times = array("d") if self._keep_times else None
                live = self._live[index] = _Live(request, t_start_s, times)
                self._spans.append(_pack_span(step - 1, begin_s, index, -1, 0, QUEUED, 0))
            else:
                self._close_span(live, step - 1, begin_s)
            live.slot = request.slot
            self._open_span(live, PREFILL, step, begin_s)

    def _preempt(self, request: Request, step: int) -> None:
        live = self._live.get(request.index)
        if live is None:  # it ended meanwhile
            return
        self._settle(live)
        self._close_span(live, step - 1, self._end_s)
        live.slot = -1
        live.preemptions += 1
        self._open_span(live, PREEMPTED, step, self._end_s)

    def _finish(self, request: Request, step: int, t_end_s: float) -> None:
        """A request ended with a step's results (or, by an error, when the step was planned: it had no part in it)."""
        failed = request.finish_reason is _ERROR
        self._end(request, step - failed, self._end_s if failed else t_end_s, t_end_s)

    def _end_outside(self, request: Request, now_s: float) -> None:
        """A request ended between steps."""
        self._gone.add(request.index)  # a step in flight may still name it
        self._end(request, self._last_step, now_s, now_s)

    def _do_postponed(self, t_end_s: float) -> None:
        """Aborts that the scheduler put off until this step's results were in, and empty plans made meanwhile."""
        postponed, self._postponed = self._postponed, []
        for late in postponed:
            if not isinstance(late, Request):
                self.idle(late, t_end_s)
            elif late.unfinished:
                self._postponed.append(late)
            elif late.finish_reason is _ABORT:
                self._end_outside(late, t_end_s)

    def _end(self, request: Request, last_step: int, span_end_s: float, finished_s: float) -> None:
        index = request.index
        live = self._live.pop(index, None)
        if live is None:
            self._spans.append(_pack_span(last_step, span_end_s, index, -1, 0, QUEUED, 0))
            live = _Live(request, math.nan, None)
            live.slot = request.slot
        else:
            self._settle(live)
        burns = request.status is _HELD  # its results are out, its row goes on
        if not (burns and live.kind == PADDING):
            self._close_span(live, last_step, span_end_s)
        self._write_request(live, finished_s)
        if burns:
            self._burning.append(live)
            if live.kind != PADDING:
                self._open_span(live, PADDING, last_step + 1, span_end_s)

    def _write_request(self, live: _Live, finished_s: float) -> None:
        request, index = live.request, live.index
        output, first_token_s = live.delivered, live.first_token_s
        ended = finished_s == finished_s
        reason = (request.finish_reason or _ABORT) if ended else None
        if not self._streams:
            output = output if ended and reason is not _ABORT else 0
            first_token_s = finished_s if output else math.nan
        self._requests.append(_pack_request(
            index, request.arrival_s, self._queued.pop(index, request.queued_s), live.scheduled_s, first_token_s,
            finished_s, request.num_prompt_tokens, output, request.num_cached_tokens, live.preemptions,
            _REASON_CODES[reason],
        ))  # fmt: skip
        if self._keep_times and output:
            times = live.times if self._streams and live.times is not None else [finished_s] * output
            rows = np.empty(output, dtype=schema.TOKENS.dtype)
            rows["time_s"], rows["request"] = times, index
            self._tokens.append(rows.tobytes())

    def _hold_ended(self, plan: StepPlan) -> None:
        """Rows that ended with the step before keep their seat, and wait for their results, till the batch ends."""
        step = plan.step
        if plan.num_steady + len(plan.tail) - len(plan.dropped) == len(self._live) - self._num_held:
            return  # none has
        for live in self._live.values():
            if live.kind != PADDING and not live.request.unfinished and self._has_all(live):
                self._settle(live)
                self._close_span(live, step - 1, self._end_s)
                self._open_span(live, PADDING, step, self._end_s)
                if self._keep_plans:
                    gone = step + (live.request in plan.dropped)  # that row was planned before the end was known
                    self._plans.append(_pack_plan(gone, live.index, live.slot, 0, 0, schema.LEFT, 0))
        self._num_held = sum(live.kind == PADDING for live in self._live.values())

    def _has_all(self, live: _Live) -> bool:
        """Whether a request that has ended got its last token before this step, not in it."""
        ticks = self._ticks - live.tick if live.tick >= 0 else 0
        return live.delivered + ticks >= live.request.num_output_tokens

    def _open_decodes(self, step: int, time_s: float) -> None:
        """Requests whose prompt was through with this step decode from the next on, unless they ended with it."""
        for live in self._fresh:
            if live.kind == _NO_SPAN and live.index in self._live:
                self._open_span(live, DECODE, step, time_s)
        self._fresh.clear()

    def _open_span(self, live: _Live, kind: int, step: int, time_s: float) -> None:
        live.kind, live.tokens = kind, 0
        self._spans.append(_pack_span(step, time_s, live.index, live.slot, 0, kind, 1))

    def _close_span(self, live: _Live, step: int, time_s: float) -> None:
        if live.kind != _NO_SPAN:
            self._spans.append(_pack_span(step, time_s, live.index, live.slot, live.tokens, live.kind, 0))
            live.kind, live.tokens = _NO_SPAN, 0

    def _end_open_requests(self) -> None:
        """At the end of the recording: what is known of requests that have not ended."""
        for live in self._live.values():
            self._settle(live)
            self._close_span(live, self._last_step, self._end_s)
            self._write_request(live, math.nan)
        for live in self._burning:
            self._close_span(live, self._last_step, self._end_s)

    def _log_plan(self, plan: StepPlan) -> None:
        step, log = plan.step, self._plans
        self._log_events(plan, step)
        if plan.num_steady != self._num_steady:
            self._num_steady = plan.num_steady
            log.append(_pack_plan(step, -1, -1, 0, plan.num_steady, schema.STEADY, 0))
        for request, computed, scheduled, samples in plan.tail:
            log.append(_pack_plan(step, request.index, request.slot, computed, scheduled, schema.ROW, samples))
        for request, first, blocks in plan.block_grants():
            index = request.index
            self._blocks.extend([_pack_block(step, index, n, block) for n, block in enumerate(blocks, first)])

    def _log_events(self, plan: StepPlan, step: int) -> None:
        for event, requests in (
            (schema.ARRIVED, plan.arrived), (schema.ABORTED, plan.aborted), (schema.JOINED, plan.joined),
            (schema.LEFT, plan.left), (schema.LOST_SEAT, plan.preempted), (schema.DROPPED, plan.dropped),
            (schema.FINISHED, plan.finished),
        ):  # fmt: skip
            if requests:
                self._plans.extend([_pack_plan(step, r.index, r.slot, 0, 0, event, 0) for r in requests])
