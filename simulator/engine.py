"""The simulated engine: a SimPy process that plans, waits as long as the step costs, and takes the results in."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy
from simpy.events import Event

from scheduler import Request, Scheduler, StepPlan
from traces.recorder import TraceRecorder

from .costs import CostModel, StepCost

Process = Generator[Event, Any, None]


class Inbox:
    """What has come for the engine since its last step: arrivals in order, then aborts."""

    def __init__(self, env: simpy.Environment) -> None:
        self.arrivals: list[Request] = []
        self.aborts: list[str | int] = []
        self._env = env
        self._senders = 0
        self._bell: Event | None = None
        self.watched: dict[str | int, Event] = {}
        """Requests whose client waits for the answer, and the event that tells it."""

    def open(self, senders: int) -> None:
        """So many processes will send and each call `close` when it has nothing more."""
        self._senders += senders

    def close(self) -> None:
        """One sender has nothing more."""
        self._senders -= 1
        self._ring()

    @property
    def closed(self) -> bool:
        """Nothing is here and nothing more will come."""
        return not (self._senders or self.arrivals or self.aborts)

    def put(self, request: Request) -> None:
        """A request arrives."""
        self.arrivals.append(request)
        self._ring()

    def put_and_watch(self, request: Request) -> Event:
        """A request arrives from a client that waits for its end: the event returned."""
        done = self.watched[request.request_id] = Event(self._env)
        self.put(request)
        return done

    def abort(self, request_id: str | int) -> None:
        """A client gives up."""
        self.aborts.append(request_id)
        self._ring()

    def tell(self, finished: Request) -> None:
        """Let the client of a finished request know."""
        done = self.watched.pop(finished.request_id, None)
        if done is not None:
            done.succeed()

    def bell(self) -> Event:
        """An event that fires when something comes or a sender closes."""
        self._bell = Event(self._env)
        return self._bell

    def _ring(self) -> None:
        if self._bell is not None:
            bell, self._bell = self._bell, None
            bell.succeed()


class SimulatedEngine:
    """Runs a scheduler against a cost model.

    Synchronous: a step takes device + host seconds. Asynchronous: planning step n+1 (its host seconds) overlaps with
    step n on the device; the device runs one step at a time.

    Args:
        env: the simulation.
        scheduler: decides.
        cost_model: prices.
        recorder: remembers.
        inbox: what arrives.
        before_plan: called before every plan; it may put into the inbox what is due by step rather than by time.
    """

    def __init__(
        self, env: simpy.Environment, scheduler: Scheduler, cost_model: CostModel, recorder: TraceRecorder,
        inbox: Inbox, *, before_plan: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._env = env
        self._scheduler = scheduler
        self._cost_model = cost_model
        self._recorder = recorder
        self._inbox = inbox
        self._before_plan = before_plan

    def start(self) -> Event:
        """Start serving; the event returned fires when all work is done and no more will come."""
        serve = self._serve_async if self._scheduler.config.async_scheduling else self._serve
        return self._env.process(serve())

    def _serve(self) -> Process:
        env, inbox, timeout = self._env, self._inbox, self._env.timeout
        schedule, step_cost, update = self._scheduler.schedule, self._cost_model.step_cost, self._scheduler.update
        record = self._recorder.step
        events = env._queue
        feed = self._before_plan
        now_s = env.now
        while True:
            if feed is not None:
                feed()
            if inbox.arrivals or inbox.aborts:
                self._take_in()
            plan = schedule(now_s)
            if plan.empty:
                self._ended_in_planning(plan)
                if not (yield from self._idle()):
                    return
                now_s = env.now
                continue
            shape = plan.shape
            cost = step_cost(shape)
            device_s, host_s = cost.device_s, cost.host_s
            padding_s = 0.0 if shape is plan.real_shape else self._padding_s(plan, cost)
            start_s, now_s = now_s, now_s + (device_s + host_s)
            if events and events[0][0] <= now_s:
                yield timeout(device_s + host_s)
            else:  # nothing happens until the step's end: move the clock there, which takes SimPy an event otherwise
                env._now = now_s
            finished = update(plan)
            record(plan, start_s, now_s, device_s, host_s, padding_s)
            if finished and inbox.watched:
                self._tell(finished)
                yield timeout(0)  # clients that got their answer may send before the next step is planned

    def _serve_async(self) -> Process:
        env, scheduler, inbox = self._env, self._scheduler, self._inbox
        device_free_s = 0.0
        running: tuple[StepPlan, float, float, StepCost, float] | None = None
        while True:
            if self._before_plan is not None:
                self._before_plan()
            if inbox.arrivals or inbox.aborts:
                self._take_in()
            plan = scheduler.schedule(env.now)
            planned = None
            if plan.empty:
                self._ended_in_planning(plan)
            else:
                cost = self._cost_model.step_cost(plan.shape)
                padding_s = 0.0 if plan.shape is plan.real_shape else self._padding_s(plan, cost)
                yield env.timeout(cost.host_s)
                start_s = max(device_free_s, env.now)
                device_free_s = start_s + cost.device_s
                planned = (plan, start_s, device_free_s, cost, padding_s)
            if running is not None:
                done, start_s, end_s, cost, padding_s = running
                if end_s > env.now:
                    yield env.timeout(end_s - env.now)
                self._finish(done, start_s, cost, padding_s)
                if inbox.watched and done.finished:
                    yield env.timeout(0)
            elif planned is None and not (yield from self._idle()):
                return
            running = planned

    def _take_in(self) -> None:
        """Hand over what has come, in the fixed order: arrivals as they came, then aborts."""
        inbox, scheduler, recorder, now_s = self._inbox, self._scheduler, self._recorder, self._env.now
        for request in inbox.arrivals:
            scheduler.add(request, now_s)
            recorder.arrived(request, now_s)
        inbox.arrivals.clear()
        for request_id in inbox.aborts:
            aborted = scheduler.find(request_id)
            if aborted is not None and scheduler.abort(request_id):
                recorder.aborted(aborted, now_s)
                inbox.tell(aborted)
        inbox.aborts.clear()

    def _padding_s(self, plan: StepPlan, cost: StepCost) -> float:
        return self._cost_model.padding_s(cost, plan.real_shape, plan.layout)

    def _finish(self, plan: StepPlan, start_s: float, cost: StepCost, padding_s: float) -> None:
        finished = self._scheduler.update(plan)
        if plan.padding_overrun:
            padding_s = self._padding_s(plan, cost)
        self._recorder.step(plan, start_s, self._env.now, cost.device_s, cost.host_s, padding_s)
        self._tell(finished)

    def _ended_in_planning(self, plan: StepPlan) -> None:
        self._recorder.idle(plan, self._env.now)
        self._tell(plan.finished)

    def _tell(self, finished: Sequence[Request]) -> None:
        if self._inbox.watched:
            for request in finished:
                self._inbox.tell(request)

    def _idle(self) -> Generator[Event, Any, bool]:
        """Wait for something to come, or for the policy's own time; False when nothing ever will."""
        inbox, wake_s = self._inbox, self._scheduler.wake_s
        if inbox.arrivals or inbox.aborts:
            return True
        if inbox.closed and wake_s is None:
            if self._scheduler.has_work:
                raise RuntimeError("the scheduler has work but plans nothing and waits for nothing")
            return False
        bell = inbox.bell()
        if wake_s is None:
            yield bell
        else:
            yield bell | self._env.timeout(max(wake_s - self._env.now, 0.0))
        return True
