"""A recorded run, simulated again from its durations, output lengths, arrivals and aborts: do decisions come out alike?

Nothing of the recorded plans is used but the step before which each arrival and abort was seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import simpy

from scheduler import Request, Scheduler
from scheduler.config import SchedulerConfig
from scheduler.errors import InputError
from traces import schema
from traces.formats import read_workload
from traces.recorder import TraceRecorder
from traces.store import WORKLOAD
from traces.trace import Trace
from traces.workload import Workload

from .costs.recorded import RecordedCost
from .engine import Inbox, SimulatedEngine

Event = tuple[int, float, int]
"""``(before which step, when in seconds, request)``"""


def rerun(trace: Trace | str | Path, workload: Workload | None = None, *, out: str | Path | None = None) -> Trace:
    """Simulate a recorded run; returns the simulated trace, with plans (see `traces.same_plans.first_difference`).

    Args:
        trace: recorded with plans, to its end.
        workload: its requests, in its order; None: the one that was kept beside it.
        out: folder to record into; None: a temporary one.

    Raises:
        InputError: the trace has no plans, or no workload was kept.
    """
    recorded = trace if isinstance(trace, Trace) else Trace.open(trace)
    if not recorded.meta.get("plans"):
        raise InputError("was recorded without plans; expected a trace that has them", path=recorded.path)
    requests = _kept_workload(recorded) if workload is None else workload
    columns = recorded.columns("steps", ["device_s", "host_s"])
    # decisions that differ may take more steps than were recorded; they are to be shown, not to end in an error
    cost_model = RecordedCost(device_s=columns["device_s"], host_s=columns["host_s"], on_end="mean")
    scheduler = Scheduler(SchedulerConfig(**_settings(recorded)), track_blocks=True)
    meta = {**recorded.meta, "source": "simulated", "cost_model": cost_model.describe()}
    slots, streams = scheduler.config.max_num_seqs, scheduler.streams
    with TraceRecorder(out, meta, slots_total=slots, streams=streams, plans=True) as recorder:
        env = simpy.Environment()
        inbox = Inbox(env)
        load = RecordedLoad(scheduler, inbox, requests, recorded)
        done = SimulatedEngine(env, scheduler, cost_model, recorder, inbox, before_plan=load.feed).start()
        env.run()
        return recorder.close(complete=done.processed)


class RecordedLoad:
    """Hands requests and aborts over before the very step that saw them first in a recorded run.

    With two steps in flight, a plan may be made before or after the results of the step before it are in; which it was
    is told by the times: what came no earlier than those results waits for them.
    """

    def __init__(self, scheduler: Scheduler, inbox: Inbox, workload: Workload, recorded: Trace) -> None:
        self._scheduler = scheduler
        self._inbox = inbox
        self._workload = workload
        self._arriving = _events(recorded, schema.ARRIVED, "queued_s")
        self._aborting = _events(recorded, schema.ABORTED, "finished_s")
        self._end_s: list[float] = recorded.column("steps", "t_end_s").tolist()
        self._ids: dict[int, str | int] = {}
        self._told = False
        inbox.open(1)

    def feed(self) -> None:
        """Put what is due into the inbox."""
        while self._arriving and self._due(self._arriving[-1]):
            request = self._request(self._arriving.pop()[2])
            self._inbox.put(request)
        while self._aborting and self._due(self._aborting[-1]):
            self._inbox.abort(self._ids[self._aborting.pop()[2]])
        if not (self._arriving or self._aborting or self._told):
            self._told = True
            self._inbox.close()

    def _request(self, index: int) -> Request:
        request = self._workload.request(index)
        self._ids[index] = request.request_id
        return request

    def _due(self, event: Event) -> bool:
        step, time_s, _ = event
        now = self._scheduler.num_steps
        if step != now:
            return step < now
        return not self._scheduler.in_flight or time_s < self._end_s[now - 1]


def _settings(recorded: Trace) -> dict[str, Any]:
    settings = dict(recorded.meta["config"])
    settings["cudagraph_capture_sizes"] = tuple(settings["cudagraph_capture_sizes"])
    settings["eos_token_ids"] = ()  # ends come from the recorded lengths
    return settings


def _kept_workload(recorded: Trace) -> Workload:
    path = recorded.path / WORKLOAD
    if not path.exists():
        raise InputError(f"holds no {WORKLOAD}; expected a measured run that kept its workload", path=recorded.path)
    return read_workload(path)


def _events(recorded: Trace, event: int, time_column: str) -> list[Event]:
    """Events of one kind in the order in which they were seen, the last one first: they are taken from the end."""
    plans = recorded.columns("plans", ["step", "request", "event"])
    which = np.flatnonzero(plans["event"] == event)
    requests = recorded.columns("requests", ["request", time_column])
    times = dict(zip(requests["request"].tolist(), requests[time_column].tolist(), strict=True))
    seen = zip(plans["step"][which].tolist(), plans["request"][which].tolist(), strict=True)
    return [(step, times[index], index) for step, index in seen][::-1]
