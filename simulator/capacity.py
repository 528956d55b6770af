"""Capacity: the highest rate that meets an SLO, or the replicas that a given rate needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.errors import ConfigError
from traces.presets import at_rate
from traces.workload import Workload

from .fleet import run_many
from .redraw import draws
from .replicas import fleet_record
from .router import find_router
from .run import make_load, servable
from .search import RateSearch, fewest
from .setup import Setup
from .slo import Figure, Slo
from .summary import run_record

if TYPE_CHECKING:
    import pandas as pd

SMALL = 2000
"""Up to so many requests a trial, starting processes costs more than it saves."""
SHORT = 10
"""Arrivals that go on for fewer mean request times than this may not show where a server settles."""
FLAT = 0.02
"""Two trials in a row whose worst figures differ by less (as a fraction) show that going on will not help."""


@dataclass(frozen=True)
class Capacity:
    """What `capacity` returns; `result` is what the command line prints as JSON."""

    result: dict[str, Any]

    def __str__(self) -> str:
        return str(self.result["sentence"])

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second that can be served; None: no rate was found."""
        value = self.result["rate_per_s"]
        return None if value is None else float(value)

    @property
    def replicas(self) -> int | None:
        """Replicas that serve it; None: no number was found."""
        value = self.result["replicas"]
        return None if value is None else int(value)

    @property
    def trials(self) -> pd.DataFrame:
        """One row a trial, in the order in which they were made: rate, replicas, met, and each figure's extremes."""
        import pandas as pd

        return pd.json_normalize(self.result["trials"])


def capacity(
    workload: Workload | str | Path = "default",
    *,
    slo: Slo | Mapping[str, float | str] | str,
    rate: float | None = None,
    replicas: int | None = None,
    router: str = "least-requests",
    max_replicas: int = 64,
    price: float | None = None,
    seeds: int = 3,
    precision: float = 0.02,
    seed: int = 0,
    requests: int | None = None,
    reading: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    traces: str | Path | None = None,
    jobs: int | None = None,
    on_trial: Callable[[], None] = lambda: None,
    **settings: Any,
) -> Capacity:
    """Find how much traffic meets an SLO.

    Without `rate`: the highest rate that `replicas` (default 1) can take. With `rate`: the fewest replicas for it (or
    a check of `replicas`, when that is given too). A trial passes when every seed meets the SLO: each is one day that
    this traffic might bring, and a promise has to hold on all of them.

    Args:
        workload: as for `simulate`; its arrivals are stretched to each rate that is tried.
        slo: limits, as text (``ttft_p99=1.0,tpot_p99=0.05``) or by name.
        rate: requests per second to serve, all replicas together.
        replicas: how many there are.
        router: which replica gets a request, see `simulator.router`.
        max_replicas: most to try.
        price: of one GPU for one hour; None: that of the hardware sheet, if it has one.
        seeds: draws of the traffic, see `simulator.redraw`.
        precision: the rate found and the lowest one that fails differ by at most this fraction.
        seed: the first of the seeds.
        requests: so many (of a file: its first).
        reading: further options of `traces.presets.resolve_workload`.
        skip_bad: leave out and count requests that could never be served, instead of refusing the workload.
        traces: folder that receives the step traces of the answer, ``seed-N/replica-N.trace``.
        jobs: processes for the seeds; None: one a core for large workloads.
        on_trial: called after each trial.
        settings: as for `simulate`.

    Raises:
        UserError: a wrong setting or file; a request that can never run.
    """
    slo = slo if isinstance(slo, Slo) else Slo.parse(slo) if isinstance(slo, str) else Slo.of(slo)
    _check_numbers(rate=rate, replicas=replicas, max_replicas=max_replicas, price=price, seeds=seeds)
    if not 0.001 <= precision <= 1:
        raise ConfigError(f"precision is {precision}; expected a fraction, 0.001 to 1")
    setup = Setup.of(settings)
    system = setup.build()
    slo.check_policy(system.config.policy)
    find_router(router)
    drawn = [
        servable([system], one, skip_bad=skip_bad)
        for one in draws(workload, seeds, seed=seed, requests=requests, reading=reading)
    ]
    trials = _Trials(setup, drawn, slo, router, seed, jobs, on_trial)
    found = _find_rate(trials, replicas or 1, precision) if rate is None else _find_replicas(
        trials, rate, replicas, max_replicas
    )  # fmt: skip
    result = {**trials.describe(), **found, **trials.answer(found["rate_per_s"], found["replicas"], price)}
    if traces is not None and result["runs"]:
        trials.record(found["rate_per_s"], found["replicas"], Path(traces))
    return Capacity({**result, "trials": trials.as_list()})


@dataclass(frozen=True)
class _Task:
    setup: Setup
    workload: Workload
    replicas: int
    router: str
    seed: int
    traces: Path | None = None


def _run(task: _Task) -> dict[str, Any]:
    system, load = task.setup.build(), make_load(task.workload)
    if task.replicas == 1 and task.traces is None:
        return run_record(system, task.workload, load)
    return fleet_record(
        system, task.workload, load,
        replicas=task.replicas, router=task.router, seed=task.seed, traces=task.traces,
    )  # fmt: skip


@dataclass(frozen=True)
class _Trial:
    """All seeds at one rate on so many replicas."""

    rate: float
    replicas: int
    misses: list[list[str]]
    records: list[dict[str, Any]]
    strain: float
    """The worst figure of any seed as a multiple of its limit."""

    @property
    def met(self) -> bool:
        """Whether every seed met the SLO."""
        return not any(self.misses)


class _Trials:
    """Runs trials, each once, and remembers them."""

    def __init__(
        self, setup: Setup, drawn: Sequence[Workload], slo: Slo, router: str, seed: int, jobs: int | None,
        on_trial: Callable[[], None],
    ) -> None:  # fmt: skip
        self.setup, self.drawn, self.slo, self.router = setup, drawn, slo, router
        self.seeds = [seed + number for number in range(len(drawn))]
        self.done: dict[tuple[float, int], _Trial] = {}
        self._jobs = 1 if jobs is None and len(drawn) * len(drawn[0]) <= SMALL else jobs
        self._on_trial = on_trial

    def __call__(self, rate: float, replicas: int) -> _Trial:
        """The trial of a rate on so many replicas."""
        if (rate, replicas) not in self.done:
            tasks = self._tasks(rate, replicas)
            by_index = dict(run_many(_run, tasks, jobs=self._jobs))
            records = [by_index[index] for index in range(len(tasks))]
            misses = [self.slo.misses(record) for record in records]
            strain = max(self.slo.strain(record) for record in records)
            self.done[rate, replicas] = _Trial(rate, replicas, misses, records, strain)
            self._on_trial()
        return self.done[rate, replicas]

    def record(self, rate: float, replicas: int, folder: Path) -> None:
        """Run a trial again with its step traces kept in ``folder/seed-N``."""
        for task, seed in zip(self._tasks(rate, replicas), self.seeds, strict=True):
            kept = folder / f"seed-{seed}"
            kept.mkdir(parents=True, exist_ok=True)
            _run(_Task(task.setup, task.workload, replicas, self.router, seed, kept))

    def _tasks(self, rate: float, replicas: int) -> list[_Task]:
        return [
            _Task(self.setup, at_rate(workload, rate), replicas, self.router, seed)
            for workload, seed in zip(self.drawn, self.seeds, strict=True)
        ]

    @property
    def flat(self) -> bool:
        """Whether the last two trials came out alike, so that more of the same will not help."""
        last = list(self.done.values())[-2:]
        return len(last) == 2 and abs(last[0].strain - last[1].strain) < FLAT * last[1].strain

    def describe(self) -> dict[str, Any]:
        """What was asked."""
        first, settings = self.drawn[0], self.setup.build().describe()["settings"]
        return {
            "workload": {"name": first.name, "requests": len(first), "digest": first.digest()},
            "skipped": dict(first.skipped),
            "settings": settings,
            "slo": self.slo.as_dict(),
            "seeds": self.seeds,
            "rule": "a trial passes when every seed meets every limit, unsaturated, with all requests served",
            "router": self.router,
        }

    def answer(self, rate: float | None, replicas: int | None, price: float | None) -> dict[str, Any]:
        """What the answer costs, and the runs behind it."""
        if rate is None or replicas is None or (rate, replicas) not in self.done:
            return {"gpus": None, "price_per_gpu_hour": None, "cost_per_million_output_tokens": None, "runs": []}
        system = self.setup.build()
        hardware = system.cost_model.hardware
        if price is None and hardware is not None:
            price = hardware.price_per_hour
        gpus = replicas * self.setup.tensor_parallel
        runs = self.done[rate, replicas].records
        costs = [_cost(gpus, price, run["output_tokens_per_s"]) for run in runs] if price is not None else None
        return {
            "gpus": gpus,
            "price_per_gpu_hour": price,
            "cost_per_million_output_tokens": None if costs is None else _extremes(costs),
            "runs": runs,
        }

    def by_seed(self, replicas: int) -> list[dict[str, float | None]]:
        """For each seed alone: the highest rate tried that passed with no lower one failing, and the lowest failing."""
        found: list[dict[str, float | None]] = []
        for index, seed in enumerate(self.seeds):
            passed = {t.rate: not t.misses[index] for t in self.done.values() if t.replicas == replicas}
            wall = min((rate for rate, met in passed.items() if not met), default=None)
            best = max((rate for rate, met in passed.items() if met and (wall is None or rate < wall)), default=None)
            found.append({"seed": seed, "passes_at": best, "fails_at": wall})
        return found

    def as_list(self) -> list[dict[str, Any]]:
        """All trials, in the order in which they were made."""
        figures = [Figure(name) for name in self.slo.as_dict()]
        return [
            {
                "rate_per_s": trial.rate,
                "replicas": trial.replicas,
                "met": trial.met,
                "seeds_met": sum(not misses for misses in trial.misses),
                "misses": sorted({reason.split(" ")[0] for misses in trial.misses for reason in misses}),
                **{figure.name: _extremes([figure.of(record) for record in trial.records]) for figure in figures},
            }
            for trial in self.done.values()
        ]


def _find_rate(trials: _Trials, replicas: int, precision: float) -> dict[str, Any]:
    search = RateSearch(
        lambda rate: trials(rate, replicas).met,
        start=_start_rate(trials.drawn[0]),
        precision=precision,
        hopeless=lambda: trials.flat,
    )
    best, wall = search.best, search.wall
    if best is None:
        assert wall is not None
        sentence = f"no rate can be promised: at {wall:g}/s still {_why(trials(wall, replicas))}"
    elif wall is None:
        last = trials(best, replicas)
        span_s = (len(trials.drawn[0]) - 1) / best
        sentence = (
            f"no limit found: it is met even at {last.rate:g}/s, where all {len(trials.drawn[0]):,} requests arrive "
            f"within {span_s:.3g} s; more requests would show the limit"
        )
    else:
        servers = "one replica" if replicas == 1 else f"{replicas} replicas behind {trials.router}"
        sentence = f"{servers} can take {best:.4g} requests/s; at {wall:.4g}/s {_why(trials(wall, replicas))}"
    limited = best is not None and wall is not None
    return {
        "mode": "rate",
        "rate_per_s": best if limited else None,
        "fails_at_per_s": wall,
        "replicas": replicas,
        "monotone": not search.islands,
        "by_seed": trials.by_seed(replicas),
        "sentence": sentence,
        "notes": _rate_notes(trials, search, replicas),
    }


def _rate_notes(trials: _Trials, search: RateSearch, replicas: int) -> list[str]:
    notes = []
    if search.islands:
        rates = ", ".join(f"{rate:.4g}" for rate in search.islands)
        notes.append(f"not monotone: it is met again at {rates}/s, above a rate that fails")
    if search.best is not None and search.wall is not None:
        notes += _short_note(trials(search.best, replicas), len(trials.drawn[0]))
    return notes


def _find_replicas(trials: _Trials, rate: float, replicas: int | None, most: int) -> dict[str, Any]:
    if replicas is not None:
        found = replicas if trials(rate, replicas).met else None
    else:
        found = fewest(lambda number: trials(rate, number).met, most=most, hopeless=lambda: trials.flat)
    last = list(trials.done.values())[-1]
    notes: list[str] = []
    if found is None:
        fails = "does not meet it" if last.replicas == 1 else "do not meet it"
        sentence = f"{_count(last.replicas, 'replica')} {fails} at {rate:g} requests/s: {_why(last)}"
        if replicas is None and trials.flat:
            sentence += "; more replicas would not change that"
    else:
        gpus = found * trials.setup.tensor_parallel
        servers = f"{_count(found, 'replica')} behind {trials.router}, {_count(gpus, 'GPU')}"
        sentence = f"{rate:g} requests/s need {servers}"
        if replicas is not None:
            sentence = f"{servers}: {'meets' if found == 1 else 'meet'} it at {rate:g} requests/s"
        if (rate, found - 1) in trials.done:
            sentence += f"; with {found - 1}, {_why(trials(rate, found - 1))}"
        if replicas is None and found < most and not trials(rate, found + 1).met:
            notes.append(f"not monotone: {found + 1} replicas do not meet it")
        notes += _short_note(trials(rate, found), len(trials.drawn[0]))
    return {
        "mode": "replicas",
        "rate_per_s": rate,
        "replicas": found,
        "monotone": not notes or not notes[0].startswith("not monotone"),
        "sentence": sentence,
        "notes": notes,
    }


def _short_note(trial: _Trial, requests: int) -> list[str]:
    """A warning where the run may have ended before the servers settled."""
    arrivals_s = (requests - 1) / trial.rate
    request_s = max((record["e2e_s"] or {"mean": 0.0})["mean"] for record in trial.records)
    if arrivals_s >= SHORT * request_s:
        return []
    return [
        f"arrivals last {arrivals_s:.3g} s, {arrivals_s / request_s:.1f} times the mean request: too short to show a "
        "steady state; more requests would make the answer sure"
    ]


def _why(trial: _Trial) -> str:
    """The first reasons of the seeds that miss, for people."""
    missed = [misses for misses in trial.misses if misses]
    reasons = "; ".join(missed[0])
    return f"{len(missed)} of {len(trial.misses)} seeds miss ({reasons})"


def _start_rate(workload: Workload) -> float:
    rate = workload.rate_per_s
    if rate is None:
        raise ConfigError(f"workload {workload.name} has no rate to change: all of it arrives at once")
    return rate


def _cost(gpus: int, price: float, tokens_per_s: float) -> float:
    """Money for a million output tokens: GPU hours a second times the price, by the tokens of that second."""
    return gpus * price / 3600 / tokens_per_s * 1e6


def _extremes(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"min": min(known), "mean": sum(known) / len(known), "max": max(known)} if known else None


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _check_numbers(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value}; expected a number > 0")
