"""Drives a Scheduler to the end of its work and records every step, row by row, for the tests of this folder."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from scheduler import PADDING_CAUSES, FinishReason, Request, RequestRefused, Scheduler, SchedulerConfig, StepPlan
from scheduler.plan import FACTS

EOS, STOP = 2, 3
TICK_S = 0.01
"""Seconds between two calls of `schedule`."""
Content = Literal["counts", "script", "tokens"]
"""No contents; contents known from a recording; contents sampled step by step (as an engine does)."""


@dataclass(frozen=True)
class Ask:
    """One request of a test: what it asks, and what happens to it. Ticks count calls of `schedule`.

    Tokens are a function of request and position; those below `shared` are common to all requests of `group`, in the
    prompt and in the outputs. `stop_at` is the output that is an EOS (or a stop token: `stop_token`).
    """

    prompt: int
    max_tokens: int
    stop_at: int | None = None
    stop_token: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    priority: int = 0
    group: int = 0
    shared: int = 0
    salt: str = ""
    arrive: int = 0
    abort: int | None = None
    abort_in_flight: bool = False
    """Abort between `schedule` and `update` rather than before `schedule`."""

    def token(self, index: int, position: int) -> int:
        """The token at a position of request `index`."""
        output = position - self.prompt + 1
        if output >= 1 and output == self.stop_at:
            return STOP if self.stop_token else EOS
        if position < self.shared:
            return 10 + 1000 * self.group + position
        return 100_000 + 1000 * index + position

    def ends(self, config: SchedulerConfig) -> tuple[FinishReason, int]:
        """Why and after how many outputs it must end when nothing cuts it short."""
        most = min(self.max_tokens, config.length_cap - self.prompt)
        stops = self.stop_at is not None and (self.stop_token or not self.ignore_eos)
        if stops and self.stop_at is not None and self.min_tokens <= self.stop_at <= most:
            return FinishReason.STOP, self.stop_at
        return FinishReason.LENGTH, most


class Row(NamedTuple):
    """One scheduled request of a step."""

    request: int
    slot: int
    computed: int
    scheduled: int
    samples: bool


class End(NamedTuple):
    """A request that ended: its reason and number of outputs."""

    request: int
    reason: FinishReason
    outputs: int


@dataclass
class StepRecord:
    """What a step was (`plan` for all its sums), and what stood around it."""

    plan: StepPlan
    rows: list[Row]
    now_s: float
    running_before: list[int]
    """Running and with tokens to come, in order (not those whose last token is in flight)."""
    waiting_before: list[int]
    held_before: int
    burning: int
    """Rows of a `static` batch that take no more tokens but are computed with it to its end."""
    running: list[int]
    blocks_held: int
    seated: int
    """Seats taken, by rows that have ended but are held too."""
    finished: list[End] = field(default_factory=list)
    lost: dict[int, int] = field(default_factory=dict)
    """Tokens each request lost by preemptions since the step before (empty plans preempt too)."""
    overrun: set[int] = field(default_factory=set)
    """Requests that had ended by EOS before this step's results came, although it has a row of theirs."""

    def facts(self) -> dict[str, Any]:
        """Everything that must not depend on how the plan was made: fast or plain."""
        plan = self.plan
        found: dict[str, Any] = {
            "step": plan.step,
            "layout": plan.layout,
            "facts": dict(zip(FACTS, plan.facts, strict=True)),
        }
        lists = ("admitted", "preempted", "first_tokens", "arrived", "aborted", "dropped")
        found |= {name: [request.request_id for request in getattr(plan, name)] for name in lists}
        found["ending"] = {request.request_id for request in plan.ending}
        found["finished"] = self.finished
        found["list"] = self.rows
        found["running_list"] = self.running
        found["grants"] = sorted((r.request_id, first, ids) for r, first, ids in plan.block_grants())
        found["shapes"] = [shape_sums(plan.shape), shape_sums(plan.real_shape)]
        return found


def shape_sums(shape: Any) -> tuple[Any, ...]:
    """All sums of a StepShape."""
    return (
        shape.layout, shape.computed_tokens, shape.num_reqs, shape.logits_rows, shape.decode_tokens,
        shape.decode_context, shape.prefill_tokens, shape.prefill_context, shape.prefill_pairs,
    )  # fmt: skip


def padding_rows(plan: StepPlan) -> int:
    """Padded rows of all causes."""
    names = {"prompt": "prompt", "finished-row": "finished", "graph": "graph", "overrun": "overrun"}
    return sum(int(getattr(plan, f"padding_{names[cause]}")) for cause in PADDING_CAUSES)


class Run:
    """A scheduler, the requests asked of it, and all that happened; `Run(...).finish()` goes on to the end.

    Args:
        config: the settings; `async_scheduling` makes the run plan step n+1 before the results of n are in.
        asks: the requests, numbered from 0 in this order. They come at their ticks, equal ticks in this order.
        plain: use the plain path.
        content: where token contents come from.
        physical: follow the contents of every KV block and check what each row reads.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        asks: Sequence[Ask],
        *,
        plain: bool = False,
        content: Content = "counts",
        physical: bool = False,
    ) -> None:
        self.config, self.asks, self.content = config, list(asks), content
        if content == "tokens":
            config = config.replaced(eos_token_ids=(EOS,))
        self.scheduler = Scheduler(config, plain=plain, track_blocks=True, token_rows=content == "tokens")
        self.requests = [self._request(index, ask) for index, ask in enumerate(asks)]
        self.steps: list[StepRecord] = []
        self.refused: dict[int, str] = {}
        self.aborted: set[int] = set()
        self.failed: set[int] = set()
        """Ended when a step was planned; told with its results."""
        self.late_aborts: set[int] = set()
        """Aborted with two steps in flight: the older one may still end them."""
        self.ends: dict[int, End] = {}
        self.delivered: dict[int, list[int]] = {index: [] for index in range(len(asks))}
        """Outputs as they came, by position of the output's token."""
        self.lost: dict[int, int] = dict.fromkeys(range(len(asks)), 0)
        """Tokens thrown away at preemptions."""
        self.cached: dict[int, int] = dict.fromkeys(range(len(asks)), 0)
        self.tables: dict[int, list[int]] = {}
        """Block tables rebuilt from the plans' grants alone."""
        self.tick = 0
        self.now_s = 0.0
        self._lost: dict[int, int] = {}
        self._flying: deque[StepRecord] = deque()
        self._memory = KvContents(self) if physical else None

    def _request(self, index: int, ask: Ask) -> Request:
        prompt: Any = ask.prompt
        script = None
        if self.content != "counts":
            known = np.array([ask.token(index, at) for at in range(ask.prompt + ask.max_tokens)], dtype=np.int32)
            prompt = known[: ask.prompt]
            script = known if self.content == "script" else None
        recorded = None if self.content == "tokens" or ask.stop_token else ask.stop_at
        return Request(
            index,
            prompt,
            ask.max_tokens,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            stop_token_ids=(STOP,) if ask.stop_token else (),
            priority=ask.priority,
            arrival_s=float(ask.arrive),
            eos_at=recorded,
            script=script,
            cache_salt=ask.salt,
        )

    def finish(self) -> Run:
        """Go on until all requests have ended; AssertionError when something hangs or goes on for ever."""
        most = 200 + 40 * sum(ask.prompt + ask.max_tokens + ask.arrive for ask in self.asks)
        while self.scheduler.has_work or self._to_come():
            assert self.tick < most, "livelock: no end in sight"
            self.step()
        return self

    def _to_come(self) -> bool:
        return any(ask.arrive >= self.tick for ask in self.asks)

    def step(self) -> StepRecord | None:
        """One tick: arrivals, aborts, `schedule`, aborts in flight, `update` of what is due; None for an empty plan."""
        self._take_in()
        record = self._plan()
        self._abort(in_flight=True)
        self.tick += 1
        self.now_s += TICK_S
        if record is not None:
            self._flying.append(record)
        late = 2 if self.config.async_scheduling and record is not None else 1
        if len(self._flying) >= late:
            self._results(self._flying.popleft())
        elif record is None:
            self._idle()
        return record

    def _take_in(self) -> None:
        for index, ask in enumerate(self.asks):
            if ask.arrive == self.tick:
                try:
                    self.scheduler.add(self.requests[index], self.now_s)
                except RequestRefused as refusal:
                    self.refused[index] = str(refusal)
        self._abort(in_flight=False)

    def _abort(self, *, in_flight: bool) -> None:
        for index, ask in enumerate(self.asks):
            if ask.abort == self.tick and ask.abort_in_flight == in_flight and index not in self.refused:
                known = self.requests[index].index >= 0 and index not in self.ends and index not in self.failed
                done = self.scheduler.abort(index)
                assert done == (known and index not in self.aborted), f"abort({index}) said {done}"
                self.scheduler.check_integrity()
                if done and index not in self.late_aborts:
                    (self.late_aborts if self.scheduler.in_flight > 1 else self.aborted).add(index)

    def _plan(self) -> StepRecord | None:
        scheduler = self.scheduler
        running_before = [int(r.request_id) for r in scheduler.seats.running() if r.num_tokens < r.end_at]
        held_before = len(scheduler.seats.held)
        waiting_before = [int(r.request_id) for r in scheduler.waiting]
        before = {index: request.num_computed_tokens for index, request in enumerate(self.requests)}
        plan = scheduler.schedule(self.now_s)
        scheduler.check_integrity()
        for request in plan.preempted:
            self.lost[int(request.request_id)] += before[int(request.request_id)]
            self._lost[int(request.request_id)] = before[int(request.request_id)]
            self.tables.pop(int(request.request_id), None)
        self._follow_tables(plan)
        self.failed |= {int(request.request_id) for request in plan.finished}
        if plan.empty:
            self._ended(plan.finished)
            return None
        seats = scheduler.seats
        record = StepRecord(
            plan,
            rows=list(rows_of(scheduler, plan)),
            now_s=self.now_s,
            running_before=running_before,
            waiting_before=waiting_before,
            held_before=held_before,
            burning=len(seats.held) + (len(seats.ending) if scheduler.policy.holds else 0),
            running=[int(r.request_id) for r in self._in_order(seats.running())],
            blocks_held=len({block for request in self._seated() for block in request.blocks}),
            seated=len(self._seated()),
            lost=self._lost,
        )
        self._lost = {}
        self.steps.append(record)
        by_request = {row.request: row for row in record.rows}
        for request in plan.admitted:
            self.cached[int(request.request_id)] += by_request[int(request.request_id)].computed
        if self._memory is not None:
            self._memory.execute(record)
        return record

    def _follow_tables(self, plan: StepPlan) -> None:
        """Block tables change only by appended blocks, and the plan tells all of them."""
        for request in plan.admitted:
            self.tables[int(request.request_id)] = []
        for request, first, blocks in plan.block_grants():
            table = self.tables[int(request.request_id)]
            assert len(table) == first, f"request {request.request_id}: a grant for block {first} of {len(table)}"
            table += blocks
        for request in self.scheduler.seats.running():
            assert self.tables[int(request.request_id)] == request.blocks

    def _in_order(self, running: list[Request]) -> list[Request]:
        """Running order; that of the seats where the policy goes by seat."""
        return sorted(running, key=lambda r: r.slot) if self.scheduler.policy.slot_order else running

    def _seated(self) -> list[Request]:
        return [*self.scheduler.seats.running(), *self.scheduler.seats.held.values()]

    def _results(self, record: StepRecord) -> None:
        plan = record.plan
        record.overrun = {
            row.request
            for row in record.rows
            if self.requests[row.request].finish_reason is FinishReason.STOP and not self._stopped_by(row)
        }
        kept = [row for row in record.rows if row.samples and self.requests[row.request] not in plan.dropped]
        for row in kept:
            assert row.request not in self.ends, f"request {row.request} got a token after its end"
            assert row.request not in self.aborted, f"request {row.request} got a token after its abort"
            self.delivered[row.request].append(row.computed + row.scheduled)
        sampled = None
        if self.content == "tokens":
            at = [(row.request, row.computed + row.scheduled) for row in record.rows]
            sampled = np.array([self.asks[index].token(index, place) for index, place in at], dtype=np.int32)
        finished = self.scheduler.update(plan, sampled)
        self.scheduler.check_integrity()
        assert list(finished) == list(plan.finished)
        record.finished = self._ended(finished)
        self.aborted |= self.late_aborts
        self.late_aborts.clear()

    def _stopped_by(self, row: Row) -> bool:
        return row.computed + row.scheduled - self.asks[row.request].prompt + 1 == self.asks[row.request].stop_at

    def _ended(self, requests: Sequence[Request]) -> list[End]:
        ended = []
        for request in requests:
            index = int(request.request_id)
            assert index not in self.ends, f"request {index} ended twice"
            assert index not in self.aborted, f"request {index} was aborted and ended all the same"
            self.late_aborts.discard(index)
            assert request.finish_reason is not None
            self.ends[index] = End(index, request.finish_reason, request.num_output_tokens)
            ended.append(self.ends[index])
        return ended

    def _idle(self) -> None:
        """Nothing could run and nothing is in flight: there must be something to wait for."""
        wake_s = self.scheduler.wake_s
        if wake_s is not None:
            assert wake_s > self.now_s - TICK_S, "woken for nothing"
            self.now_s = max(self.now_s, wake_s)
            return
        coming = any(ask.arrive >= self.tick for ask in self.asks)
        aborting = any((ask.abort or 0) >= self.tick for ask in self.asks)
        assert coming or aborting or not self.scheduler.has_work, "hang: work to do, nothing planned, nothing awaited"


def rows_of(scheduler: Scheduler, plan: StepPlan) -> Iterator[Row]:
    """The rows of a plan, one by one."""
    rows = scheduler.rows(plan)
    columns = (rows.slots, rows.computed, rows.scheduled, rows.samples)
    for request, slot, computed, scheduled, samples in zip(
        rows.requests, *(column.tolist() for column in columns), strict=True
    ):
        yield Row(int(request.request_id), slot, computed, scheduled, samples)


class KvContents:
    """What the KV blocks would hold, had the steps been run: every read must find its own prefix.

    A position's content stands for all tokens up to it, so it is right only if the whole prefix is.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._written: dict[tuple[int, int], int] = {}
        self._prefixes: dict[int, list[int]] = {}

    def execute(self, record: StepRecord) -> None:
        """Write all new positions of a step, then read all positions of its requests."""
        size = self._run.config.block_size
        for row in record.rows:
            blocks, prefixes = self._run.requests[row.request].blocks, self._prefix(row)
            for at in range(row.computed, row.computed + row.scheduled):
                self._written[blocks[at // size], at % size] = prefixes[at]
        for row in record.rows:
            blocks, prefixes = self._run.requests[row.request].blocks, self._prefix(row)
            for at in range(row.computed + row.scheduled):
                found = self._written.get((blocks[at // size], at % size))
                assert found == prefixes[at], f"request {row.request} reads foreign K/V at position {at}"

    def _prefix(self, row: Row) -> list[int]:
        index, ask = row.request, self._run.asks[row.request]
        known = self._prefixes.setdefault(index, [])
        anonymous = index if self._run.content == "counts" else -1
        for at in range(len(known), row.computed + row.scheduled):
            known.append(hash((known[-1] if known else ask.salt, ask.token(index, at), anonymous)))
        return known
