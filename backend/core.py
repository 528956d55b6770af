"""The engine's core: plan, launch, take results in, record, deliver. One thread; no step knows another way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scheduler import Request, Scheduler, StepPlan
from scheduler.request import FinishReason, RequestStatus
from traces.recorder import TraceRecorder

from .clock import Clock
from .device import Launched, StepResult
from .executor import Executor
from .live import Live
from .outputs import EngineStats, FinishedRequest, StepEvent

OUTGROWN = "the request outgrew the whole KV cache; raise num_blocks or lower its max_tokens"


class _Running:
    """A step on the device."""

    __slots__ = ("host_s", "launched", "plan", "start_s")

    def __init__(self, plan: StepPlan, launched: Launched, start_s: float, host_s: float) -> None:
        self.plan = plan
        self.launched = launched
        self.start_s = start_s
        self.host_s = host_s


class EngineCore:
    """Runs a scheduler's plans on an executor and records them.

    Synchronous: a round plans a step and waits for it. Asynchronous (``async_scheduling``): a round plans the next step
    while one runs, then waits for the one that runs.

    Args:
        scheduler: decides.
        executor: computes.
        recorder: remembers.
        clock: seconds.
        on_step: told of every step after it is recorded.
        on_end: told of every request that ends, while its token ids are still known.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, recorder: TraceRecorder, clock: Clock, *,
        on_step: Callable[[StepEvent], None], on_end: Callable[[Live], None],
    ) -> None:  # fmt: skip
        self.now_s = 0.0
        """When the last round ended, or the wait after it."""
        self._scheduler = scheduler
        self._executor = executor
        self._recorder = recorder
        self._clock = clock
        self._on_step = on_step
        self._on_end = on_end
        self._ahead = scheduler.config.async_scheduling
        self._running: _Running | None = None
        self._lives: dict[Request, Live] = {}
        self._steady: tuple[list[Request], list[Live]] = [], []
        self._preemptions = self._queries = self._hits = 0
        self._last: StepPlan | None = None

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended, or a step is on the device."""
        return self._scheduler.has_work or self._running is not None

    @property
    def wake_s(self) -> float | None:
        """When a round may plan something although nothing new came; None: no need."""
        return self._scheduler.wake_s

    def take_in(self, arrivals: Iterable[Live], aborts: Iterable[str]) -> None:
        """Hand over what has come, in the fixed order: arrivals as they came, then aborts."""
        for live in arrivals:
            self._scheduler.add(live.request, self.now_s)
            self._lives[live.request] = live
            self._recorder.arrived(live.request, self.now_s)
        gone = [request for request in map(self._scheduler.find, aborts) if request is not None]
        for request in gone:
            if self._scheduler.abort(request.request_id):
                self._recorder.aborted(request, self.now_s)
        self._tell_step(None, (request for request in gone if request.finish_reason is FinishReason.ABORT))

    def round(self) -> bool:
        """Plan, run and take in; False when nothing ran: wait for something to come, or until `wake_s`."""
        launched = self._plan()
        if not self._ahead:
            due = launched
        else:
            due, self._running = self._running, launched
        if due is not None:
            self._finish(due)
        return launched is not None or due is not None

    def stats(self) -> EngineStats:
        """Where it stands."""
        scheduler, last = self._scheduler, self._last
        pool = scheduler.kv.pool
        return EngineStats(
            running=scheduler.seats.num_running, waiting=len(scheduler.waiting), slots_busy=scheduler.seats.num_taken,
            slots_total=scheduler.config.max_num_seqs, blocks_used=pool.num_used, blocks_cached=pool.num_cached,
            blocks_total=scheduler.config.usable_blocks, steps=0 if last is None else last.step + 1,
            preemptions=self._preemptions, prefix_queries=self._queries, prefix_hits=self._hits,
            in_flight=scheduler.in_flight,
        )  # fmt: skip

    def check_integrity(self) -> None:
        """Raise AssertionError unless scheduler and engine agree on who is there."""
        self._scheduler.check_integrity()
        lost = [
            request.request_id for request in self._lives if self._scheduler.find(request.request_id) is not request
        ]
        if lost:
            raise AssertionError(f"the engine holds requests that the scheduler does not know: {lost}")

    def fail_all(self, sentence: str) -> None:
        """Tell everybody that it is over."""
        for request, live in list(self._lives.items()):
            request.finish_reason = FinishReason.ERROR
            del self._lives[request]
            live.end(self.now_s, sentence)

    def _plan(self) -> _Running | None:
        start_s = self.now_s
        planned_s = self._clock.now()
        plan = self._scheduler.schedule(start_s)
        if plan.empty:
            self._recorder.idle(plan, self.now_s)
            self._tell_step(None, plan.finished)
            return None
        for request in plan.admitted:
            live = self._lives[request]
            if live.scheduled_s is None:
                live.scheduled_s = start_s
        launched = self._executor.launch(plan, self._lives)
        return _Running(plan, launched, start_s, self._clock.now() - planned_s)

    def _finish(self, running: _Running) -> None:
        """Wait for a step, take its results in, record and deliver."""
        plan, result = running.plan, running.launched.wait()
        resumed_s = self._clock.now()
        lives, stopped = self._push(plan, result)
        finished = self._scheduler.update(plan, result.token_ids, stopped)
        end_s = self._clock.now()
        start_s, host_s = self._times(running, result, resumed_s, end_s)
        padding_s = result.device_s * _padding_rows(plan) / plan.computed_tokens
        self._recorder.step(plan, start_s, end_s, result.device_s, host_s, padding_s)
        self.now_s = end_s
        self._deliver(plan, lives, finished, (start_s, result.device_s, host_s, padding_s))

    def _times(self, running: _Running, result: StepResult, resumed_s: float, end_s: float) -> tuple[float, float]:
        """When the step began and its host seconds. Without overlap the host has all that the device has not."""
        if not self._ahead:
            return running.start_s, end_s - running.start_s - result.device_s
        return result.started_s, running.host_s + end_s - resumed_s

    def _push(self, plan: StepPlan, result: StepResult) -> tuple[list[Live], set[Request]]:
        """Give each request its token of this step, if that counts; returns who got one, and whose stop string it
        completes.
        """
        rows = self._scheduler.rows(plan)
        tokens, logprobs = result.token_ids.tolist(), result.logprobs
        if logprobs is None and not plan.tail and not plan.dropped:  # steady decoding: as below, only faster
            lives = self._lives_of(rows.requests)
            return lives, {live.request for live, token in zip(lives, tokens, strict=True) if live.push(token, None)}
        dropped, lives, stopped = set(plan.dropped), [], set()
        for index, (request, samples) in enumerate(zip(rows.requests, rows.samples.tolist(), strict=True)):
            if samples and request not in dropped:
                lives.append(self._lives[request])
                if lives[-1].push(tokens[index], None if logprobs is None else logprobs[index]):
                    stopped.add(request)
        return lives, stopped

    def _lives_of(self, requests: list[Request]) -> list[Live]:
        """Those of a list of requests, looked up once while it is the same list."""
        if self._steady[0] is not requests:
            self._steady = requests, [self._lives[request] for request in requests]
        return self._steady[1]

    def _deliver(
        self, plan: StepPlan, lives: Sequence[Live], finished: Sequence[Request],
        times: tuple[float, float, float, float],
    ) -> None:  # fmt: skip
        first_s, gaps_s = [], []
        ended, now_s, streams = set(finished), self.now_s, self._scheduler.streams
        for live in lives:
            if not streams:
                live.held = live.request.status is RequestStatus.HELD
            elif not ended or live.request not in ended:
                gap_s = live.deliver(now_s)
                if gap_s is None:
                    first_s.append(now_s - live.request.arrival_s)
                else:
                    gaps_s.append(gap_s)
        self._count(plan)
        self._last = plan
        self._tell_step(plan, finished, times, first_s, gaps_s)

    def _count(self, plan: StepPlan) -> None:
        self._preemptions += len(plan.preempted)
        self._queries += self._queried(plan)
        self._hits += plan.cached_tokens

    def _queried(self, plan: StepPlan) -> int:
        """Prompt tokens that were looked up in the prefix cache."""
        if not (self._scheduler.kv.caching and plan.admitted):
            return 0
        return sum(request.num_prompt_tokens for request in plan.admitted)

    def _tell_step(
        self, plan: StepPlan | None, finished: Iterable[Request],
        times: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
        first_s: list[float] | None = None, gaps_s: list[float] | None = None,
    ) -> None:  # fmt: skip
        """Tell those whose requests ended, then those who watch steps."""
        first_s, gaps_s = first_s or [], gaps_s or []
        ended = [self._end(request, first_s, gaps_s) for request in finished if request in self._lives]
        if plan is None and not ended:
            return
        start_s, device_s, host_s, padding_s = times
        queries = 0 if plan is None else self._queried(plan)
        self._on_step(StepEvent(
            plan, self.now_s if plan is None else start_s, self.now_s, device_s, host_s, padding_s, ended, first_s,
            gaps_s, queries, 0 if plan is None else plan.cached_tokens,
        ))  # fmt: skip

    def _end(self, request: Request, first_s: list[float], gaps_s: list[float]) -> FinishedRequest:
        live = self._lives.pop(request)
        before_s, had_first = live.last_s, live.first_s is not None
        self._on_end(live)
        live.end(self.now_s, OUTGROWN if request.finish_reason is FinishReason.ERROR else None)
        if live.last_s is not None and live.last_s != before_s:
            if had_first:
                gaps_s.append(live.last_s - (before_s or 0.0))
            else:
                first_s.append(live.last_s - request.arrival_s)
        return live.finished(self.now_s)


def _padding_rows(plan: StepPlan) -> int:
    return plan.padding_prompt + plan.padding_finished + plan.padding_graph + plan.padding_overrun
