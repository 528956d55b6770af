"""One simulated run: `simulate` a workload on a system and get its step trace."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import simpy

from scheduler import Scheduler
from scheduler.errors import ConfigError
from traces.recorder import TraceRecorder
from traces.servable import servable_with
from traces.trace import Trace
from traces.workload import Workload

from .blame import users_faults
from .engine import Inbox, SimulatedEngine
from .load import ClosedLoop, Load, OpenLoop
from .redraw import resolve
from .setup import Setup, System

MOST_THINK_S = 1_000_000_000
"""Longer than anybody thinks: over thirty years."""


def simulate(
    workload: Workload | str | Path = "default",
    *,
    requests: int | None = None,
    rate: float | None = None,
    out: str | Path | None = None,
    concurrency: int | None = None,
    think_s: float = 0.0,
    aborts: Sequence[tuple[float, int]] = (),
    seed: int = 0,
    plans: bool = False,
    token_times: bool = False,
    plain: bool = False,
    skip_bad: bool = False,
    **settings: Any,
) -> Trace:
    """Simulate a workload on a system.

    Args:
        workload: a Workload, a file of any known format, or a preset's name.
        requests: only so many of them.
        rate: stretch arrivals to so many requests a second.
        out: folder ``NAME.trace`` to record into; None: a temporary one that lives as long as the trace.
        concurrency: so many closed-loop clients instead of the workload's arrival times.
        think_s: seconds such a client waits between an answer and its next request.
        aborts: ``(seconds, request index)``: clients that give up (open loop only).
        seed: of a preset's requests.
        plans: record every step's plan too.
        token_times: record when every token was delivered.
        plain: use the scheduler's plain loop (a reference; same results, slower).
        skip_bad: leave out and count requests that could never be served, instead of refusing the workload.
        settings: those of `simulator.setup.Setup` and of `scheduler.SchedulerConfig`.

    Raises:
        UserError: a wrong setting, file, or a request that can never run (it is named).
    """
    check_load(concurrency, rate, think_s)
    workload = resolve(workload, requests=requests, rate=rate, seed=seed)
    system = Setup.of(settings).build()
    workload = servable([system], workload, skip_bad=skip_bad)
    load = make_load(workload, concurrency=concurrency, think_s=think_s, aborts=aborts)
    meta = {"seed": seed, "load": {"concurrency": concurrency, "think_s": think_s}}
    options = {"plans": plans, "token_times": token_times, "plain": plain}
    return run(system, workload, load, out=out, meta=meta, **options)


def make_load(
    workload: Workload,
    *,
    concurrency: int | None = None,
    think_s: float = 0.0,
    aborts: Sequence[tuple[float, int]] = (),
) -> Load:
    """An open loop, or closed-loop clients when `concurrency` is given; raises ConfigError."""
    check_load(concurrency, None, think_s)
    if concurrency is None:
        return OpenLoop(workload, aborts)
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}; expected a whole number of clients >= 1")
    return ClosedLoop(workload, concurrency, think_s)


def run(
    system: System,
    workload: Workload,
    load: Load,
    *,
    out: str | Path | None = None,
    meta: dict[str, Any] | None = None,
    plans: bool = False,
    token_times: bool = False,
    plain: bool = False,
) -> Trace:
    """Run a load on a system to its end and return the trace.

    Raises RequestRefused before anything is written when a request of the workload could never run.
    """
    refuse_early(system, workload)
    with users_faults(system):
        return _run(system, workload, load, out=out, meta=meta, plans=plans, token_times=token_times, plain=plain)


def _run(
    system: System, workload: Workload, load: Load, *, out: str | Path | None, meta: dict[str, Any] | None,
    plans: bool, token_times: bool, plain: bool,
) -> Trace:  # fmt: skip
    system.cost_model.reset()
    scheduler = Scheduler(system.config, plain=plain, track_blocks=plans)
    env = simpy.Environment()
    inbox = Inbox(env)
    recorder = TraceRecorder(
        out,
        {**describe(system, workload, scheduler), **(meta or {})},
        slots_total=system.config.max_num_seqs,
        streams=scheduler.streams,
        plans=plans,
        token_times=token_times,
    )
    with recorder:
        load.start(env, inbox)
        done = SimulatedEngine(env, scheduler, system.cost_model, recorder, inbox).start()
        env.run(until=done)
        recorder.annotate(extrapolation=system.cost_model.extrapolation())
        return recorder.close()


def describe(system: System, workload: Workload, scheduler: Scheduler) -> dict[str, Any]:
    """What a trace's meta says of a simulated run."""
    software = {
        "batchscope": version("batchscope"),
        "python": platform.python_version(),
        "simpy": simpy.__version__,
    }
    return {
        "source": "simulated",
        **system.describe(),
        "layout": scheduler.layout,
        "workload": {"name": workload.name, "requests": len(workload), "digest": workload.digest()},
        "skipped": dict(workload.skipped),
        "software": software,
    }


def check_load(concurrency: int | None, rate: float | None, think_s: float) -> None:
    """Raise ConfigError for options of the load that contradict each other."""
    if not 0 <= think_s <= MOST_THINK_S:
        raise ConfigError(f"think_s is {think_s}; expected seconds, 0 to {MOST_THINK_S:,}")
    if concurrency is None and think_s:
        raise ConfigError("think_s is for clients that wait for their answers; give concurrency too")
    if concurrency is not None and rate is not None:
        raise ConfigError(
            "concurrency and rate contradict each other: clients that wait set the rate; give one of them"
        )


def refuse_early(system: System, workload: Workload) -> None:
    """Raise InputError, before a run, for the first request that could never be served."""
    servable([system], workload)


def servable(systems: Iterable[System], workload: Workload, *, skip_bad: bool = False) -> Workload:
    """The workload, when all of its requests could be served by every one of the systems.

    With `skip_bad`, requests that one of them could never serve are left out and counted in `Workload.skipped`.

    Raises:
        InputError: a request that could never be served, or with `skip_bad`: not one that could.
    """
    for system in systems:
        with users_faults(system):
            workload = servable_with(system.config, workload, skip_bad=skip_bad)
    return workload
