"""One simulated run: `simulate` a workload on a system and get its step trace."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import simpy

from scheduler import Request, Scheduler
from scheduler.errors import ConfigError, InputError, RequestRefused
from traces.recorder import TraceRecorder
from traces.trace import Trace
from traces.workload import Workload

from .engine import Inbox, SimulatedEngine
from .load import ClosedLoop, Load, OpenLoop
from .redraw import resolve
from .setup import Setup, System


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
        settings: those of `simulator.setup.Setup` and of `scheduler.SchedulerConfig`.

    Raises:
        UserError: a wrong setting, file, or a request that can never run (it is named).
    """
    workload = resolve(workload, requests=requests, rate=rate, seed=seed)
    load = make_load(workload, concurrency=concurrency, think_s=think_s, aborts=aborts)
    meta = {"seed": seed, "load": {"concurrency": concurrency, "think_s": think_s}}
    options = {"plans": plans, "token_times": token_times, "plain": plain}
    return run(Setup.of(settings).build(), workload, load, out=out, meta=meta, **options)


def make_load(
    workload: Workload,
    *,
    concurrency: int | None = None,
    think_s: float = 0.0,
    aborts: Sequence[tuple[float, int]] = (),
) -> Load:
    """An open loop, or closed-loop clients when `concurrency` is given; raises ConfigError."""
    if think_s < 0:
        raise ConfigError(f"think_s is {think_s}; expected seconds >= 0")
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
        "software": software,
    }


def refuse_early(system: System, workload: Workload) -> None:
    """Raise, before a run, for the first request that could never be served."""
    probe = Scheduler(system.config)
    outputs = workload.output_tokens if workload.max_tokens is None else workload.max_tokens
    lengths = sorted({(int(p), int(o)) for p, o in zip(workload.prompt_tokens, outputs, strict=True)})
    for prompt, limit in _extremes(lengths):
        try:
            probe.refuse_if_never(Request("probe", prompt, limit))
        except RequestRefused:
            _name_first_refused(system, workload)


def _extremes(lengths: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Refusal grows with prompt and with limit, so only pairs that no other pair exceeds in both need a look."""
    kept: list[tuple[int, int]] = []
    for prompt, limit in reversed(lengths):
        if not kept or limit > kept[-1][1]:
            kept.append((prompt, limit))
    return kept


def _name_first_refused(system: System, workload: Workload) -> None:
    probe = Scheduler(system.config)
    for index in range(len(workload)):
        try:
            probe.refuse_if_never(workload.request(index))
        except RequestRefused as refusal:
            raise InputError(str(refusal), path=workload.name) from refusal
