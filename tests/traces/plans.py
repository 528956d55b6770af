"""Runs for the step trace's tests: plans made by hand, and a toy executor around the real scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scheduler.config import SchedulerConfig
from scheduler.plan import FACTS, StepPlan, StepShape
from scheduler.request import FinishReason, Request, RequestStatus
from scheduler.scheduler import Scheduler
from traces.recorder import TraceRecorder
from traces.trace import Trace

Row = tuple[Request, int, int, bool]


def request(index: int, prompt: int = 4, max_tokens: int = 4, *, arrival_s: float = 0.0, slot: int = -1) -> Request:
    made = Request(index, prompt, max_tokens, arrival_s=arrival_s)
    made.index, made.queued_s, made.slot = index, arrival_s, slot
    made.status = RequestStatus.WAITING if slot < 0 else RequestStatus.RUNNING
    return made


def end(made: Request, reason: FinishReason = FinishReason.LENGTH) -> Request:
    made.status, made.finish_reason = RequestStatus.FINISHED, reason
    return made


def plan(step: int, *, tail: Sequence[Row] = (), steady: int = 0, **fields: Any) -> StepPlan:
    """A ragged plan whose counts follow from its rows; `fields` win over them."""
    made = StepPlan()
    prefill = sum(count for _, _, count, _ in tail if count > 1)
    decode = steady + sum(count for _, _, count, _ in tail if count == 1)
    rows = steady + len(tail)
    facts = dict.fromkeys(FACTS, 0) | {
        "prefill_tokens": prefill, "decode_tokens": decode, "computed_tokens": prefill + decode, "logits_rows": rows,
        "sampled": steady + sum(samples for *_, samples in tail), "slots_busy": rows, "slots_total": 2,
        "running": rows, "num_reqs": rows, "rows": rows, "cols": 1, "blocks_total": 8,
    }  # fmt: skip
    facts |= {name: fields.pop(name) for name in list(fields) if name in facts}
    made.step, made.layout, made.tail, made.num_steady = step, "ragged", list(tail), steady
    made.facts = tuple(facts.values())
    made.shape = made.real_shape = StepShape("ragged", made.computed_tokens, rows, rows, decode, 0, prefill)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def recorder(path: Path | None = None, *, slots: int = 2, **options: Any) -> TraceRecorder:
    return TraceRecorder(path, {"source": "simulated", "policy": "chunked"}, slots_total=slots, **options)


@contextmanager
def cut_short(path: Path, error: type[BaseException] = ValueError, **options: Any) -> Iterator[TraceRecorder]:
    """A recorder whose run ends with an exception."""
    with suppress(error), recorder(path, **options) as record:
        yield record
        raise error


def two_requests(path: Path | None = None, *, steady: bool = True, **options: Any) -> Trace:
    """A (prompt 4, 3 tokens) arrives at 0, B (prompt 3, 2 tokens) at 0.5; a step takes a second, from 1 s on.

    Step 0: A's prompt. 1: B's prompt, A decodes. 2: both decode, both end. B waits as long as step 0 runs.
    """
    record = recorder(path, **options)
    a, b = request(0, 4, 3), request(1, 3, 2, arrival_s=0.5)
    with record:
        record.arrived(a, 0.0)
        record.arrived(b, 0.5)
        a.slot = 0
        record.step(plan(0, tail=[(a, 0, 4, True)], admitted=[a]), 1.0, 2.0, 0.9, 0.1, 0.0)
        b.slot = 1
        record.step(plan(1, tail=[(a, 4, 1, True), (b, 0, 3, True)], admitted=[b]), 2.0, 3.0, 0.9, 0.1, 0.0)
        ended = [end(a), end(b)]
        if steady:
            last = plan(2, steady=2, joined=[a, b], finished=ended)
        else:
            last = plan(2, tail=[(a, 5, 1, True), (b, 3, 1, True)], finished=ended)
        record.step(last, 3.0, 4.0, 0.9, 0.1, 0.0)
        return record.close()


def run_scheduler(
    config: SchedulerConfig,
    requests: Sequence[Request],
    *,
    path: Path | None = None,
    aborts: Sequence[tuple[float, int]] = (),
    plain: bool = False,
    watch: Callable[[Scheduler, StepPlan], None] | None = None,
    **options: Any,
) -> Trace:
    """Serve requests with the real scheduler and a step time of 1 ms + 1 us a row; two in flight when async."""
    scheduler = Scheduler(config, plain=plain, track_blocks=bool(options.get("plans")))
    record = recorder(path, slots=config.max_num_seqs, streams=scheduler.streams, **options)
    arrivals, stops, flight = deque(requests), deque(sorted(aborts)), deque[tuple[StepPlan, float]]()
    depth = 2 if config.async_scheduling else 1
    now_s, stuck = 0.0, 0
    with record:
        while arrivals or scheduler.has_work:
            while arrivals and arrivals[0].arrival_s <= now_s:
                scheduler.add(arrivals[0], now_s)
                record.arrived(arrivals.popleft(), now_s)
            while stops and stops[0][0] <= now_s:
                target = requests[stops.popleft()[1]]
                if scheduler.abort(target.request_id):
                    record.aborted(target, now_s)
            made = scheduler.schedule(now_s)
            if made.empty:
                record.idle(made, now_s)
            else:
                flight.append((made, now_s))
                if watch is not None:
                    watch(scheduler, made)
            if flight and (made.empty or len(flight) >= depth):
                done, start_s = flight.popleft()
                end_s = max(now_s, start_s) + 1e-3 + 1e-6 * done.computed_tokens
                scheduler.update(done)
                record.step(done, start_s, end_s, end_s - start_s, 0.0, 0.0)
                now_s = end_s
            elif made.empty:
                wakes = [] if scheduler.wake_s is None else [scheduler.wake_s]
                wakes += [arrivals[0].arrival_s] if arrivals else []
                stuck = 0 if wakes else stuck + 1
                assert stuck < 3, "the scheduler has work but plans nothing"
                now_s = max(now_s, min(wakes, default=now_s))
        return record.close()
