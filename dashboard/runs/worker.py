"""One run in a process of its own: ``python -m dashboard.runs.worker LIMITS... FOLDER UPLOADS ALLOWED...``."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from scheduler.errors import UserError
from simulator.explain import Case, explain_case
from simulator.run import servable, simulate
from simulator.setup import Setup
from simulator.sweep import sweep
from traces.trace import Trace
from traces.workload import Workload

from .folders import ABOUT, read_json, write_json
from .request import RunRequest
from .sandbox import Limits, OutOfTime, obey, sentence_of
from .store import EXPLANATION, RESULT, TRACE, State, write_state
from .uploads import StoredUploads
from .workload_spec import workload_of

PROGRESS = "progress.json"
"""How far a run is, where its trace does not tell: ``{"phase", "done", "total"}``."""
MOST_WITH_PLANS = 5_000
"""Requests up to which every step's plan is kept, so that any step can be inspected."""


def main(arguments: list[str]) -> None:
    """Do the run that a folder asks for, and write there how it ended."""
    limits, (folder_name, uploads, *allowed) = obey(arguments)
    folder = Path(folder_name)
    state, sentence = _outcome(folder, uploads, allowed, limits)
    write_state(folder, state, sentence)


def _outcome(folder: Path, uploads: str, allowed: Collection[str], limits: Limits) -> tuple[State, str]:
    try:
        _do(folder, uploads, allowed)
    except UserError as error:
        return "failed", sentence_of(error, limits, folder)
    except MemoryError:
        return "failed", limits.memory_sentence()
    except OutOfTime:
        return "failed", limits.time_sentence()
    except Exception as error:  # whatever else is a mistake of ours: told, and kept in worker.log
        traceback.print_exc()
        return "failed", f"the run failed inside batchscope: {type(error).__name__}: {error}"
    return "done", ""


def _do(folder: Path, uploads: str, allowed: Collection[str]) -> None:
    told = read_json(folder / ABOUT)
    assert told is not None
    request = RunRequest.of(told["about"])
    request.check(allowed)
    stored = StoredUploads(Path(uploads)) if uploads else None
    if request.kind == "sweep":
        _sweep(folder, request, stored)
    else:
        _simulate(folder, request, workload_of(request.workload, stored, seed=request.seed))


def _simulate(folder: Path, request: RunRequest, workload: Workload) -> None:
    _tell(folder, "simulating", 0, len(workload))
    trace = simulate(
        workload,
        out=folder / TRACE,
        concurrency=request.concurrency,
        think_s=request.think_s,
        seed=request.seed,
        plans=len(workload) <= MOST_WITH_PLANS,
        skip_bad=request.skip_bad,
        **request.settings,
    )
    if request.explain:
        write_json(folder / EXPLANATION, _explain(folder, request, workload, trace))


def _explain(folder: Path, request: RunRequest, workload: Workload, trace: Trace) -> dict[str, Any]:
    """What bounds the run; an error here takes nothing from the run itself."""
    _tell(folder, "explaining", 0, 0)
    try:
        setup = Setup.of(request.settings)
        served = servable([setup.build()], workload, skip_bad=request.skip_bad)
        return explain_case(Case(trace, setup, served, request.concurrency, request.think_s)).as_dict()
    except UserError as error:
        return {"error": str(error)}


def _sweep(folder: Path, request: RunRequest, uploads: StoredUploads | None) -> None:
    done = _Counter(folder)
    source, options = _sweep_source(request, uploads)
    swept = sweep(
        source,
        grid=request.grid,
        latency=request.latency,
        concurrency=request.concurrency,
        think_s=request.think_s,
        seed=request.seed,
        skip_bad=request.skip_bad,
        slo=request.slo,
        jobs=1,
        on_plan=lambda total, known: done.begin(total),
        on_run=done.advance,
        **options,
        **request.settings,
    )
    write_json(folder / RESULT, swept.result)


def _sweep_source(request: RunRequest, uploads: StoredUploads | None) -> tuple[Workload | str, Mapping[str, Any]]:
    """The workload; of a preset its name, so that seed, rate and number of requests can be axes of the grid."""
    workload = workload_of(request.workload, uploads, seed=request.seed)
    if request.workload["kind"] != "preset":
        return workload, {}
    given = {name: request.workload.get(name) for name in ("requests", "rate")}
    return str(request.workload["name"]), {name: value for name, value in given.items() if value is not None}


class _Counter:
    """Points of a sweep that are done."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._done, self._total = folder, 0, 0

    def begin(self, total: int) -> None:
        self._total = total
        _tell(self._folder, "sweeping", 0, total)

    def advance(self) -> None:
        self._done += 1
        _tell(self._folder, "sweeping", self._done, self._total)


def _tell(folder: Path, phase: str, done: int, total: int) -> None:
    write_json(folder / PROGRESS, {"phase": phase, "done": done, "total": total})


if __name__ == "__main__":
    main(sys.argv[1:])
