"""Several replicas behind a router, in one simulation: a trace each, and one record of them all."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from scheduler import Scheduler
from scheduler.errors import ConfigError, UserError
from traces.metrics import RequestTimes, spread, weighted_spread
from traces.record import FIGURES, record_of
from traces.recorder import TraceRecorder
from traces.trace import Trace
from traces.workload import Workload

from .blame import users_faults
from .engine import Inbox, SimulatedEngine
from .load import Load
from .router import FrontInbox, Replica, Router, find_router
from .run import describe, refuse_early
from .setup import System

FILES_A_TRACE = 12
"""Files that a recorder holds open, rounded up."""
SUMS = ("steps", "padding_s", "preemptions", "recomputed_tokens", "cached_tokens", "computed_tokens")
PER_REPLICA = ("requests", "finished", "steps", "slot_occupancy", "preemptions", "cached_tokens", "saturated")


def fleet_record(
    system: System, workload: Workload, load: Load, *, replicas: int, router: str, seed: int = 0, **options: Any
) -> dict[str, Any]:
    """Run a load on replicas and sum up; the record has the fields of a single run's, and `per_replica`.

    Arguments and errors are those of `run_replicas`.
    """
    start = time.perf_counter()
    traces = run_replicas(system, workload, load, replicas=replicas, router=router, seed=seed, **options)
    return {**merged_record(traces, wall_s=time.perf_counter() - start), "router": router}


def run_replicas(
    system: System,
    workload: Workload,
    load: Load,
    *,
    replicas: int,
    router: str,
    seed: int = 0,
    traces: str | Path | None = None,
    meta: dict[str, Any] | None = None,
) -> list[Trace]:
    """Run a load on several like replicas behind a router, in one simulation; returns each replica's trace.

    Args:
        system: what each replica is.
        workload: what `load` sends.
        load: who sends.
        replicas: how many.
        router: a name of `simulator.router.BUILT_IN`, or ``module:Class``.
        seed: of the router's randomness.
        traces: folder that receives ``replica-N.trace`` of each; None: temporary traces.
        meta: more for the traces' meta.

    Raises:
        UserError: an unknown router, a router that needs contents which the workload does not have, or a request that
            could never be served.
    """
    kind = find_router(router)
    if replicas < 1:
        raise ConfigError(f"replicas is {replicas}; expected a whole number >= 1")
    if kind.needs_contents and workload.hash_ids is None:
        raise ConfigError(f"router {router} looks at contents, but workload {workload.name} gives lengths only")
    refuse_early(system, workload)
    with users_faults(system):
        return _run(system, workload, load, kind, replicas=replicas, router=router, seed=seed, traces=traces, meta=meta)


def _run(
    system: System, workload: Workload, load: Load, kind: type[Router], *, replicas: int, router: str, seed: int,
    traces: str | Path | None, meta: dict[str, Any] | None,
) -> list[Trace]:  # fmt: skip
    _allow_files(FILES_A_TRACE * replicas)
    system.cost_model.reset()
    env = simpy.Environment()
    inboxes = [Inbox(env) for _ in range(replicas)]
    seen = [Replica(number) for number in range(replicas)]
    front = FrontInbox(env, inboxes, kind(seen, system.config, seed))
    with ExitStack() as stack:
        recorders, ends = [], []
        load.start(env, front)
        for number, inbox in enumerate(inboxes):
            scheduler = Scheduler(system.config)
            facts = {"replica": number, "replicas": replicas, "router": router, "seed": seed, **(meta or {})}
            recorder = TraceRecorder(
                _folder(traces, number),
                {**describe(system, workload, scheduler), **facts},
                slots_total=system.config.max_num_seqs,
                streams=scheduler.streams,
            )
            recorders.append(stack.enter_context(recorder))
            ends.append(SimulatedEngine(env, scheduler, system.cost_model, recorder, inbox).start())
        env.run(until=simpy.AllOf(env, ends))
        for recorder in recorders:
            recorder.annotate(extrapolation=system.cost_model.extrapolation())
        return [recorder.close() for recorder in recorders]


def merged_record(traces: Sequence[Trace], *, wall_s: float | None = None) -> dict[str, Any]:
    """One record of several replicas' traces: requests pooled, work summed, rates over the common makespan.

    Slots are those of all replicas together; it counts as saturated when any replica is.
    """
    records = [record_of(trace) for trace in traces]
    pooled = _Pooled(traces)
    times = RequestTimes.of(pooled)
    makespan_s = _makespan(traces)
    sums = {name: sum(record[name] for record in records) for name in SUMS}
    busy_s = sum((r["slot_occupancy"] or 0.0) * (r["makespan_s"] or 0.0) for r in records)
    used_s = sum((r["blocks"]["mean_used"] or 0.0) * (r["makespan_s"] or 0.0) for r in records)
    gaps = pooled.columns("gaps", ["gap_s", "count"])
    padding = _sum_by_name([record["padding_tokens"] for record in records])
    rows = sum(count for cause, count in padding.items() if cause != "context")
    known = {
        **{name: records[0][name] for name in ("policy", "layout")},
        "requests": len(times.arrival_s),
        "finished": int(times.served.sum()),
        **sums,
        "makespan_s": makespan_s,
        "ttft_s": spread(times.ttft_s),
        "tpot_s": spread(times.tpot_s),
        "itl_s": weighted_spread(gaps["gap_s"], gaps["count"]),
        "e2e_s": spread(times.e2e_s),
        "queue_s": spread(times.queue_s),
        "requests_per_s": _rate(times.served.sum(), makespan_s),
        "output_tokens_per_s": _rate(times.output_tokens.sum(), makespan_s),
        "prompt_tokens_per_s": _rate(times.prompt_tokens[times.output_tokens > 0].sum(), makespan_s),
        "slot_occupancy": _rate(busy_s, makespan_s * len(records)),
        "padding_fraction": _rate(rows, sums["computed_tokens"]),
        "saturated": _any(record["saturated"] for record in records),
        "wall_s": wall_s,
        "finish_reasons": _sum_by_name([record["finish_reasons"] for record in records]),
        "padding_tokens": padding,
        "blocks": {"total": sum(r["blocks"]["total"] for r in records), "mean_used": _rate(used_s, makespan_s)},
        "wait_s": _sum_by_name([record["wait_s"] for record in records]),
        "extrapolated": traces[0].meta.get("extrapolation"),
        "caveat": records[0]["caveat"],
        "skipped": traces[0].meta.get("skipped", {}),
        "replicas": len(records),
        "per_replica": [{name: record[name] for name in PER_REPLICA} for record in records],
    }
    return {name: known[name] for name in (*FIGURES, *(name for name in known if name not in FIGURES))}


class _Pooled(Trace):
    """The requests and gaps of several traces as one table each."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        super().__init__(traces[0].path, traces[0].meta, "finished")
        self._traces = traces

    def columns(self, table: str, names: Sequence[str] | None = None, start: int = 0) -> dict[str, npt.NDArray[Any]]:
        """Columns of all traces, one after the other."""
        parts = [trace.columns(table, names, start) for trace in self._traces]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _makespan(traces: Sequence[Trace]) -> float:
    """First arrival to last end, over all replicas, seconds."""
    arrivals = np.concatenate([trace.column("requests", "arrival_s") for trace in traces])
    ends = [trace.column("requests", "finished_s") for trace in traces]
    steps = [trace.column("steps", "t_end_s")[-1:] for trace, end in zip(traces, ends, strict=True)
             if np.isnan(end).any()]  # fmt: skip
    return float(np.nanmax(np.concatenate([*ends, *steps])) - arrivals.min())


def _rate(amount: float | np.integer[Any], over: float) -> float | None:
    return float(amount / over) if over else None


def _any(values: Sequence[bool | None] | Any) -> bool | None:
    known = [value for value in values if value is not None]
    return any(known) if known else None


def _sum_by_name(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def _folder(traces: str | Path | None, number: int) -> Path | None:
    return None if traces is None else Path(traces) / f"replica-{number}.trace"


def _allow_files(needed: int) -> None:
    """Raise this process's limit on open files as far as `needed`; raises UserError where the system forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed + 256
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise UserError(f"so many replicas need {wanted} open files, the system allows {hard} (see ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
