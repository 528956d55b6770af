"""Sweeps: every combination of a grid of settings, on all cores or a cluster, and able to stop and go on."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scheduler as scheduler_room
import traces as traces_room
from scheduler.errors import ConfigError, InputError, RequestRefused
from scheduler.policies import find_policy
from traces.workload import Workload

from .fleet import run_many
from .grid import LOAD_AXES, Grid, check_grid, parse_grid, points
from .redraw import resolve
from .run import check_load, make_load, servable
from .runlog import RunLog, open_log
from .setup import Setup, System
from .slo import Figure
from .summary import run_record

if TYPE_CHECKING:
    import pandas as pd

GridLike = Mapping[str, Any] | Iterable[str]
CANNOT_RUN = (ConfigError, InputError, RequestRefused)
"""What makes a combination one that cannot run. Other errors of a user (a full disk) stop the sweep: they may pass."""


@dataclass(frozen=True)
class Sweep:
    """What `sweep` returns; `result` is what the command line prints as JSON. Runs are in the order of the grid."""

    result: dict[str, Any]

    @property
    def runs(self) -> pd.DataFrame:
        """One row a run: its point of the grid, `error`, `pareto`, and its figures (``ttft_s.p99``)."""
        import pandas as pd

        return pd.DataFrame(flat_rows(self.result))


@dataclass(frozen=True)
class _Point:
    """One combination, ready to run; with an `error` when it cannot."""

    values: dict[str, Any]
    setup: Setup
    workload: Workload
    concurrency: int | None
    think_s: float
    seed: int
    key: str
    drawn: Workload
    error: str | None = None
    slo: Mapping[str, float] | None = None


def sweep(
    workload: Workload | str | Path = "default",
    *,
    grid: GridLike,
    out: str | Path | None = None,
    latency: str = "e2e_p99",
    requests: int | None = None,
    rate: float | None = None,
    concurrency: int | None = None,
    think_s: float = 0.0,
    seed: int = 0,
    reading: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    slo: Mapping[str, float] | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    on_plan: Callable[[int, int], None] = lambda total, known: None,
    on_run: Callable[[], None] = lambda: None,
    **settings: Any,
) -> Sweep:
    """Run every combination of a grid.

    Args:
        workload: as for `simulate`.
        grid: name -> values, or texts as for `simulator.grid.parse_grid`. Names are those of all settings, and
            ``rate``, ``requests``, ``concurrency``, ``think_s`` and ``seed``.
        out: log of the runs (``.jsonl``, or a folder): runs that it already holds are not run again.
        latency: figure that the Pareto front sets against the output tokens per second.
        requests: so many (of a file: its first).
        rate: requests per second.
        concurrency: closed-loop clients instead of arrival times.
        think_s: seconds such a client waits.
        seed: of a preset's requests.
        reading: further options of `traces.presets.resolve_workload`.
        skip_bad: leave out and count requests that a combination could never serve; else it gets an error.
        slo: limits that each request must meet, for the goodput of each run, as for `Trace.summary`; None: no goodput.
        jobs: processes; None: one a core.
        ray: address of a Ray cluster, or ``local``; None: no Ray.
        on_plan: called once with the number of runs and how many of them are known.
        on_run: called when a run has ended.
        settings: those that all runs share, as for `simulate`.

    A combination that cannot run (a model that does not fit, a request that could never be served) gets a row with the
    `error` instead of figures. A run is known when its settings, cost model, workload, seed, and the code that ran it
    are all the same.

    Raises:
        UserError: a wrong name or value, or a wrong file.
    """
    checked = check_grid(grid) if isinstance(grid, Mapping) else parse_grid(grid)
    figure = Figure(latency)
    load = {"requests": requests, "rate": rate, "concurrency": concurrency, "think_s": think_s, "seed": seed}
    _check_overlap(checked, settings, load)
    planned = _plan(workload, checked, settings, load, reading, skip_bad, slo)
    with ExitStack() as stack:
        log = stack.enter_context(open_log(out)) if out is not None else None
        known = dict(log.known) if log is not None else {}
        missing = [point for point in planned if point.key not in known]
        on_plan(len(planned), len(planned) - len(missing))
        for point, entry in _run_all(missing, jobs, ray):
            known[point.key] = entry
            if log is not None:
                _log(log, point, entry)
            on_run()
    rows = [_row(point, known[point.key]) for point in planned]
    _mark_front(rows, figure)
    return Sweep(
        {
            "workload": {"name": planned[0].drawn.name, "requests": len(planned[0].drawn)},
            "grid": {name: [_plain(value) for value in values] for name, values in checked.items()},
            "settings": {name: _plain(value) for name, value in settings.items()},
            "load": {name: value for name, value in load.items() if name not in checked},
            "latency": latency,
            **({} if slo is None else {"slo": dict(slo)}),
            "skipped": dict(planned[0].drawn.skipped),
            "reused": len(planned) - len(missing),
            "errors": sum(row["error"] is not None for row in rows),
            "runs": rows,
        }
    )


def flat_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A sweep's runs as flat rows: what goes into CSV and data frames."""
    return [_flat({**row["point"], **{k: v for k, v in row.items() if k != "point"}}) for row in result["runs"]]


def pareto_front(gains: Sequence[float], costs: Sequence[float]) -> list[bool]:
    """Which points no other point beats: none has at least the gain at no more cost, and one of both better."""
    order = sorted(range(len(gains)), key=lambda i: (-gains[i], costs[i]))
    front = [False] * len(gains)
    best, best_gain = float("inf"), float("inf")
    for i in order:
        if costs[i] < best or (costs[i] == best and gains[i] == best_gain):
            front[i] = True
            best, best_gain = costs[i], gains[i]
    return front


def _check_overlap(grid: Grid, settings: Mapping[str, Any], load: Mapping[str, Any]) -> None:
    given = {*settings, *(name for name in ("requests", "rate", "concurrency") if load[name] is not None)}
    if load["think_s"] and load["concurrency"] is None and "concurrency" not in grid:
        check_load(None, None, load["think_s"])
    for name in grid:
        if name in given:
            raise ConfigError(f"{name} is given as a setting and in the grid; expected one of the two")


def _plan(
    workload: Workload | str | Path, grid: Grid, settings: Mapping[str, Any], load: Mapping[str, Any],
    reading: Mapping[str, Any] | None, skip_bad: bool, slo: Mapping[str, float] | None,
) -> list[_Point]:  # fmt: skip
    Setup.of(settings)  # a wrong name stops here
    draw = _Draws(workload, reading)
    planned = []
    for values in points(grid):
        sent = {**load, **{name: value for name, value in values.items() if name in LOAD_AXES}}
        system = {name: value for name, value in values.items() if name not in LOAD_AXES}
        if sent["concurrency"] is None and "concurrency" in grid:
            sent["think_s"] = 0.0  # a pause of the clients of the other points
        requests, digest = draw(sent["seed"], sent["requests"], sent["rate"])
        planned.append(_point(values, Setup.of({**settings, **system}), requests, digest, sent, skip_bad, slo))
    if draw.same_for_all(grid.get("seed", [])):
        raise ConfigError(f"the grid varies seed, but the requests of {planned[0].workload.name} do not depend on it")
    return planned


class _Draws:
    """The workload by seed, number of requests and rate, each made once, with its digest."""

    def __init__(self, source: Workload | str | Path, reading: Mapping[str, Any] | None) -> None:
        self._source, self._reading = source, reading
        self._known: dict[tuple[int, int | None, float | None], tuple[Workload, str]] = {}

    def __call__(self, seed: int, requests: int | None, rate: float | None) -> tuple[Workload, str]:
        which = (seed, requests, rate)
        if which not in self._known:
            made = resolve(self._source, seed=seed, requests=requests, rate=rate, reading=self._reading)
            self._known[which] = (made, made.digest())
        return self._known[which]

    def same_for_all(self, seeds: Sequence[int]) -> bool:
        """Whether there are several seeds and they change nothing."""
        _, requests, rate = next(iter(self._known))
        digests = {digest for (_, *other), (_, digest) in self._known.items() if other == [requests, rate]}
        return len(seeds) > 1 and len(digests) == 1


def _point(
    values: dict[str, Any], setup: Setup, drawn: Workload, digest: str, sent: Mapping[str, Any], skip_bad: bool,
    slo: Mapping[str, float] | None,
) -> _Point:  # fmt: skip
    concurrency, think_s, seed = sent["concurrency"], sent["think_s"], sent["seed"]
    error, system, workload = None, None, drawn
    try:
        check_load(concurrency, sent["rate"], think_s)
        system = setup.build()
        workload = servable([system], drawn, skip_bad=skip_bad)
        make_load(workload, concurrency=concurrency, think_s=think_s)
    except CANNOT_RUN as refusal:
        error = str(refusal)
    identity = {
        "system": asdict(setup) if system is None else system.describe(),
        "load": {"concurrency": concurrency, "think_s": think_s, "seed": seed},
        "workload": digest if workload is drawn else workload.digest(),
        "batchscope": version("batchscope"),
        "code": _code(setup, system),
        "error": error,
        **({} if slo is None else {"slo": dict(slo)}),
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    return _Point(values, setup, workload, concurrency, think_s, seed, key, drawn, error, slo)


def _code(setup: Setup, system: System | None) -> str:
    """SHA-256 of the code that a run's figures come from: ours, and a policy's or cost model's of somebody else."""
    sha = hashlib.sha256(_own_code().encode())
    if system is not None:
        for kind in (type(system.cost_model), find_policy(system.config.policy)):
            for base in kind.__mro__[:-1]:
                try:
                    sha.update(Path(inspect.getfile(base)).read_bytes())
                except (OSError, TypeError):
                    sha.update(repr(base).encode())  # typed into a session: there is no file to look at
    return sha.hexdigest()


@cache
def _own_code() -> str:
    sha = hashlib.sha256()
    for room in (__file__, scheduler_room.__file__, traces_room.__file__):
        for file in sorted(Path(str(room)).parent.rglob("*.py")):
            sha.update(file.read_bytes())
    return sha.hexdigest()


def _run_all(missing: list[_Point], jobs: int | None, ray: str | None) -> Iterable[tuple[_Point, dict[str, Any]]]:
    """Each point and what became of it; those that cannot run first."""
    able = []
    for point in missing:
        if point.error is not None:
            yield point, {"error": point.error, "record": None}
        else:
            able.append(point)
    for index, entry in run_many(_run, able, jobs=jobs, ray=ray):
        yield able[index], entry


def _run(point: _Point) -> dict[str, Any]:
    load = make_load(point.workload, concurrency=point.concurrency, think_s=point.think_s)
    meta = {"load": {"concurrency": point.concurrency, "think_s": point.think_s}}
    try:
        record = run_record(point.setup.build(), point.workload, load, slo=point.slo, meta=meta)
        return {"error": None, "record": record}
    except CANNOT_RUN as error:
        return {"error": str(error), "record": None}


def _log(log: RunLog, point: _Point, entry: Mapping[str, Any]) -> None:
    values = {name: _plain(value) for name, value in point.values.items()}
    log.append(point.key, {"point": values, "workload": point.workload.name, "seed": point.seed, **entry})


def _row(point: _Point, entry: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in point.values.items()}
    return {"point": values, "error": entry["error"], "pareto": False, **(entry["record"] or {})}


def _mark_front(rows: list[dict[str, Any]], figure: Figure) -> None:
    placed = [row for row in rows if row["error"] is None and row["output_tokens_per_s"] and figure.of(row) is not None]
    front = pareto_front([row["output_tokens_per_s"] for row in placed], [figure.of(row) or 0.0 for row in placed])
    for row, on_front in zip(placed, front, strict=True):
        row["pareto"] = on_front


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = "+".join(str(item) for item in value) if isinstance(value, list) else value
    return flat


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
