"""The scheduler: requests in, step plans out, results back in. The same for the simulator and the real engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from .account import account, repeat, same_facts
from .config import Layout, SchedulerConfig
from .errors import RequestRefused
from .kv import KvManager
from .outputs import OutputChecker
from .plan import WAIT_REASONS, IntArray, StepPlan
from .policies import find_policy
from .request import FinishReason, Request, RequestStatus, TokenArray
from .rows import PlanRows, plan_rows
from .seats import Seats
from .step import UNLIMITED, Step
from .waiting import FcfsQueue, PriorityQueue, WaitingQueue

_NEW, _WAITING, _RUNNING = RequestStatus.NEW, RequestStatus.WAITING, RequestStatus.RUNNING
_HELD, _FINISHED = RequestStatus.HELD, RequestStatus.FINISHED
_STOP, _LENGTH = FinishReason.STOP, FinishReason.LENGTH  # looked up once: an enum's members are slow to reach
_LASTING = ("none", "seqs")
"""Reasons for waiting that last until a request ends or comes."""


class Scheduler:
    """Decides, step by step, who computes which tokens.

    A round is `add`/`abort` as things happen, `schedule` for the next plan, and `update` with its results. Under
    ``async_scheduling`` one more plan may be made before the results of the last are in.

    Args:
        config: all settings.
        plain: list every row explicitly instead of keeping the steady prefix; same plans, slower. A reference.
        track_blocks: fill `StepPlan.new_blocks` (who runs or records block ids needs it).
        token_rows: keep every seated request's token ids in one ``(slots, max_model_len)`` array (engines need it).
    """

    def __init__(
        self, config: SchedulerConfig, *, plain: bool = False, track_blocks: bool = False, token_rows: bool = False
    ) -> None:
        kind = find_policy(config.policy)
        self.config = config
        self.policy = kind(config)
        self.layout: Layout = kind.layout if config.layout == "auto" else config.layout
        self.padded = self.layout == "padded"
        self.pads = self.padded or bool(config.cudagraph_capture_sizes)
        """Whether steps may have more rows than tokens."""
        self.tracks = track_blocks
        self.streams = not kind.holds
        """Whether tokens are delivered as they come; otherwise all at once when the request is released."""
        budget = config.max_num_batched_tokens if kind.budgeted else UNLIMITED
        self.seats = Seats(
            config.max_num_seqs,
            config.block_size,
            budget,
            plain=plain,
            slot_order=kind.slot_order,
            token_rows=config.max_model_len if token_rows else 0,
        )
        self.kv = KvManager(
            config,
            caching=config.enable_prefix_caching and not kind.reserves,
            logical_release=kind.slot_order,
            whole=kind.reserves,
        )
        self.waiting: WaitingQueue = PriorityQueue() if config.scheduling_policy == "priority" else FcfsQueue()
        self._step = Step(
            config,
            self.seats,
            self.kv,
            self.waiting,
            budget=budget,
            splits=kind.splits_prompts,
            track_blocks=track_blocks,
        )
        self._outputs = OutputChecker(config)
        self._requests: dict[str | int, Request] = {}
        self._in_flight: deque[StepPlan] = deque()
        self._fresh: StepPlan | None = None
        """The newest plan, while what it was made from is unchanged."""
        self._ahead = config.async_scheduling
        self._may_repeat = kind.repeats and not self.pads
        lasting = (*_LASTING, "batch-closed") if kind.holds else _LASTING
        self._lasting = {WAIT_REASONS.index(reason) for reason in lasting}
        self._repeatable: tuple[int, ...] | None = None
        """`same_facts` of the last plan, when it was nothing but decodes and nothing has changed since."""
        self._late_aborts: list[Request] = []
        self._outgrown: list[Request] = []
        """Preempted requests that no pool can hold, whose last token may still be in flight: it may be their end."""
        self._owed: Sequence[Request] = ()
        """Results of a batch that ended by an abort, to be reported with the next plan."""
        self._arrived: list[Request] = []
        self._aborted: list[Request] = []
        self._length_cap = config.length_cap
        self._num_added = 0
        self.num_steps = 0
        """Plans made so far, empty ones not counted."""

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting, in a seat, or in flight."""
        return bool(len(self.waiting) or self.seats.num_taken or self._in_flight or self._owed)

    @property
    def in_flight(self) -> int:
        """Plans whose results are not in yet."""
        return len(self._in_flight)

    @property
    def wake_s(self) -> float | None:
        """When `schedule` should be called again although nothing new came; None: no need."""
        return self._step.wake_s

    def add(self, request: Request, now_s: float = 0.0) -> None:
        """Queue a new request; raises RequestRefused when it could never run."""
        if request.status is not _NEW:
            raise RuntimeError(f"request {request.request_id} has been added before; make a new one")
        self.refuse_if_never(request)
        if request.request_id in self._requests:
            raise RequestRefused(f"request {request.request_id}: another unfinished request has this id")
        request.index = self._num_added
        self._num_added += 1
        request.queued_s = now_s
        if request.ignore_eos or (request.eos_at or 0) < request.min_tokens:
            request.eos_at = None
        request.end_at = min(request.num_prompt_tokens + request.max_tokens, self._length_cap)
        request.last_at = request.end_at
        if request.eos_at is not None:
            request.last_at = min(request.end_at, request.num_prompt_tokens + request.eos_at)
        if request.tokens is not None:
            self.kv.note_contents()
        request.status = _WAITING
        self._repeatable = None
        self._requests[request.request_id] = request
        if request.stop_token_ids:
            self._outputs.watch(request.stop_token_ids)
        self._arrived.append(request)
        self.waiting.push(request)

    def refuse_if_never(self, request: Request) -> None:
        """Raise RequestRefused, with what would let it in, for a request that could never run."""
        prompt, limit, cap = request.num_prompt_tokens, request.max_tokens, self._length_cap
        if prompt < 1 or limit < 1:
            raise RequestRefused(f"request {request.request_id}: prompt and max_tokens must be at least 1 token")
        if request.min_tokens > limit:
            raise RequestRefused(
                f"request {request.request_id}: min_tokens {request.min_tokens} exceeds max_tokens {limit}"
            )
        if prompt >= cap:
            raise RequestRefused(
                f"request {request.request_id}: its prompt of {prompt} tokens leaves no room for output; shorten it to "
                f"{cap - 1} or raise max_model_len to at least {prompt + 1 + self.config.model_len_margin}"
            )
        refusal = self.policy.refuse(request)
        if refusal is not None:
            raise refusal
        self.kv.refuse_if_never(request)

    def find(self, request_id: str | int) -> Request | None:
        """The request with this id that has not left yet."""
        return self._requests.get(request_id)

    def abort(self, request_id: str | int) -> bool:
        """End a request at once, wherever it is; False when no unfinished request has this id.

        With two steps in flight it takes effect when the results of the older one are in.
        """
        request = self._requests.get(request_id)
        if request is None or request.finish_reason is FinishReason.ABORT:
            return False
        if len(self._in_flight) > 1:
            self._late_aborts.append(request)
        else:
            self.finish(request, FinishReason.ABORT)
            self._aborted.append(request)
        return True

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End an unfinished request from outside (an abort, a stop string); tokens in flight for it are dropped."""
        if self._fresh is not None:
            self.rows(self._fresh)  # its rows are those it was planned with
        self._drop_in_flight(request)
        self._end(request, reason)
        if request.status is _FINISHED:
            self._forget((request,))
        if self.seats.held and not self.seats.num_running and not self._in_flight:
            self._owed = self._release_batch()  # its last row was aborted: no step will end the batch

    def schedule(self, now_s: float = 0.0) -> StepPlan:
        """Plan the next step. An empty plan means that nothing can run now: wait for results, arrivals or `wake_s`.

        `plan.finished` is not empty when planning itself ended requests (they can never fit, or their batch is over);
        of a plan that is not empty, `update` returns these too.
        """
        if len(self._in_flight) > self._ahead:
            raise RuntimeError("a plan is still in flight; call update with its results first")
        plan = None if self._repeatable is None else repeat(self, self._step, self._repeatable)
        if plan is None:
            self._repeatable = None
            plan = self._plan_anew(now_s)
            if plan.empty:
                return plan
            if self._may_repeat and not self._step.changed and self._step.wait_reason in self._lasting:
                self._repeatable = same_facts(plan)
        if plan.ending:
            self._repeatable = None
        self.num_steps += 1
        self._in_flight.append(plan)
        self._fresh = plan
        return plan

    def _plan_anew(self, now_s: float) -> StepPlan:
        """Ask the policy."""
        step = self._step
        if self._ahead:
            self._catch_up()
        step.begin(now_s)
        self.policy.plan(step)
        plan = account(self, step)
        if self._arrived or self._aborted:
            plan.arrived, self._arrived = self._arrived, []
            plan.aborted, self._aborted = self._aborted, []
        plan.finished = ()
        if self._owed:
            plan.finished, self._owed = self._owed, ()
        if step.outgrown:
            self._outgrown += step.outgrown
            if not self._in_flight:
                plan.finished = [*plan.finished, *self._fail_outgrown()]
                if plan.empty and len(self.waiting):
                    return self._after_failures(plan, now_s)
        return plan

    def _after_failures(self, failed: StepPlan, now_s: float) -> StepPlan:
        """A plan that only ended requests that can never fit has made room: plan again, and report them with it."""
        plan = self._plan_anew(now_s)
        plan.arrived, plan.aborted = [*failed.arrived, *plan.arrived], [*failed.aborted, *plan.aborted]
        plan.preempted = [*failed.preempted, *plan.preempted]
        plan.finished = [*failed.finished, *plan.finished]
        return plan

    def rows(self, plan: StepPlan) -> PlanRows:
        """All rows of a plan, one by one, in running order. Ask first before the next `schedule` or `update`."""
        if plan.row_arrays is None:
            if self._fresh is not plan:
                raise RuntimeError("the rows of a plan must be asked for before the next schedule or update")
            plan.row_arrays = plan_rows(plan, self.seats.steady, slot_order=self.policy.slot_order)
        return plan.row_arrays

    def burning(self) -> list[Request]:
        """Rows of a `static` batch that have ended, or sample their last token in a step in flight, and burn on with
        the batch; in slot order.
        """
        if not self.policy.holds:
            return []
        rows = [*self.seats.held.values(), *self.seats.ending.values()]
        return sorted(rows, key=lambda request: request.slot)

    def per_request(self, step: int) -> tuple[IntArray, IntArray]:
        """`(num_scheduled_tokens, num_computed_tokens before)` of a step in flight, each ``(requests,)``.

        By number: a plan's shape must not refer back to the plan, or each would wait for the garbage collector.
        """
        for plan in self._in_flight:
            if plan.step == step:
                rows = self.rows(plan)
                return rows.scheduled, rows.computed
        raise RuntimeError(f"step {step} is not in flight")

    def update(
        self,
        plan: StepPlan,
        token_ids: TokenArray | Sequence[int] | None = None,
        stopped: Collection[Request] = (),
    ) -> Sequence[Request]:
        """Take a step's results, oldest plan first; returns the requests that ended, in running order.

        Args:
            plan: what `schedule` returned.
            token_ids: sampled tokens, shape ``(rows,)``, one for each of `rows(plan)`, which must have been asked for;
                None where contents are not computed (then requests end by length or by their recorded EOS).
            stopped: requests whose token of this step completes a stop string: it ends them as an EOS would.
        """
        in_flight = self._in_flight
        if not in_flight or in_flight[0] is not plan:
            raise RuntimeError("update takes plans in the order in which they were scheduled, once each")
        in_flight.popleft()
        self._fresh = None
        if plan.ending or token_ids is not None:
            self._end_all(plan, token_ids, stopped)
        if self.seats.held and not self.seats.num_running:
            plan.finished = [*plan.finished, *self._release_batch()]
        if self._outgrown:
            plan.finished = [*plan.finished, *self._fail_outgrown()]
        if self._late_aborts:
            self._abort_late()
        return plan.finished

    def _end_all(
        self, plan: StepPlan, token_ids: TokenArray | Sequence[int] | None, stopped: Collection[Request]
    ) -> None:
        ends = self._ends(plan, token_ids, stopped)
        if not ends:
            return
        finished = list(plan.finished)
        for request, reason, outputs in ends:
            if self._in_flight:
                self._trim(request, outputs)
            self._end(request, reason)
            if request.status is _FINISHED or self.config.release == "request":
                finished.append(request)
        plan.finished = finished
        self._forget(finished)

    def _catch_up(self) -> None:
        """The step before last is known now; requests whose last token by length is in flight must not run again."""
        self.kv.begin_step()
        for request in self._in_flight[-1].ending if self._in_flight else ():
            by_length = request.num_tokens >= request.end_at
            if by_length and request.status is RequestStatus.RUNNING and request.slot not in self.seats.ending:
                self.seats.set_aside(request)

    def _ends(
        self, plan: StepPlan, token_ids: TokenArray | Sequence[int] | None, by_string: Collection[Request]
    ) -> list[tuple[Request, FinishReason, int]]:
        """Who ends with this step's results: ``(request, reason, number of outputs)``, in running order."""
        ends = []
        stopped = set()
        if token_ids is not None:
            sampled = np.asarray(token_ids, dtype=np.int32)
            for request, outputs in self._outputs.take(plan, self.rows(plan), sampled, self.seats, by_string):
                ends.append((request, _STOP, outputs))
                stopped.add(request)
        for request in plan.ending:
            if request.status < _HELD and request not in stopped:
                outputs = request.last_at - request.num_prompt_tokens
                ends.append((request, _STOP if outputs == request.eos_at else _LENGTH, outputs))
        if len(ends) > 1:
            tail = {row[0]: index for index, row in enumerate(plan.tail)}
            ends.sort(key=lambda end: self._place(end[0], tail))
        return ends

    def _place(self, request: Request, tail: dict[Request, int]) -> tuple[int, int]:
        """Sort key of running order within a plan: the steady rows, then its tail."""
        if request in tail:
            return 1, tail[request]
        return 0, request.slot if self.policy.slot_order else request.join_no

    def _trim(self, request: Request, outputs: int) -> None:
        """Undo the row that a later plan, made before this end was known, holds for the request."""
        if request.num_output_tokens > outputs:
            for later in self._in_flight:
                later.drop(request)
                later.amend(padding_overrun=1, decode_tokens=-1, sampled=-1)
                later.real_shape = later.real_shape.without_decode_row(request.num_computed_tokens)
            self._retract(request)

    def _retract(self, request: Request) -> None:
        if request.steady is not None:
            self.seats.tail.insert(0, request)
            request.steady.leave(request)
        request.stored_tokens -= 1

    def _drop_in_flight(self, request: Request) -> None:
        """The request ends before the results of the newest plan are in: throw away the token it samples there."""
        for plan in self._in_flight:
            if request not in plan.dropped and self._samples(plan, request):
                plan.drop(request)
                plan.amend(sampled=-1)
                self._retract(request)

    def _samples(self, plan: StepPlan, request: Request) -> bool:
        for row in plan.tail:
            if row[0] is request:
                return row[3]
        member = request.joined_clock <= plan.clock and (request.steady is not None or plan.clock < request.left_clock)
        return plan.num_steady > 0 and member

    def _end(self, request: Request, reason: FinishReason) -> None:
        """The request computes no more: free its seat and blocks, or hold them until its batch ends."""
        request.finish_reason = reason
        self._repeatable = None
        if request.status is RequestStatus.HELD:
            return
        if request.status is not _RUNNING:
            self.waiting.remove(request)
            request.status = _FINISHED
        elif self.policy.holds:
            self.seats.hold(request)
        else:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        self.seats.vacate(request)
        self.kv.release(request)
        request.status = _FINISHED

    def _release_batch(self) -> list[Request]:
        """The batch is over: all its rows leave; returns those that are still owed their results."""
        held = sorted(self.seats.held.values(), key=lambda request: request.slot)
        for request in held:
            self._leave(request)
        self._forget(held)
        if self.config.release == "request":
            return []
        return [request for request in held if request.finish_reason is not FinishReason.ABORT]

    def _fail_outgrown(self) -> list[Request]:
        """End what can never run again; returns the requests."""
        failed = [request for request in self._outgrown if request.unfinished]
        self._outgrown.clear()
        for request in failed:
            self._end(request, FinishReason.ERROR)
        self._forget(failed)
        return failed

    def _abort_late(self) -> None:
        if self._late_aborts and len(self._in_flight) <= 1:
            late, self._late_aborts = self._late_aborts, []
            for request in late:
                if self._requests.get(request.request_id) is request:
                    self.abort(request.request_id)

    def _forget(self, requests: Iterable[Request]) -> None:
        """Their results have left: their ids are free again."""
        for request in requests:
            if self._requests.get(request.request_id) is request:
                del self._requests[request.request_id]

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks, reference counts, queue, slots and sums are all consistent."""
        self.seats.check()
        seated = [*self.seats.running(), *self.seats.held.values()]
        self.kv.pool.check([request.blocks for request in seated])
        waiting = list(self.waiting)
        if set(waiting) & set(seated) or len(set(waiting)) != len(waiting):
            raise AssertionError("a request is queued twice, or queued and seated")
        for request in waiting:
            if request.blocks or request.stored_computed:
                raise AssertionError(f"waiting request {request.request_id} holds blocks or computed tokens")
        for request in seated:
            held = len(request.blocks) * self.config.block_size
            if request.num_computed_tokens > held:
                raise AssertionError(f"request {request.request_id} computed {request.num_computed_tokens} of {held}")
