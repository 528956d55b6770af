"""Several policies on the same requests: what each costs, and how much of it is policy and how much layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.errors import ConfigError, UserError
from scheduler.policies import find_policy
from traces.workload import Workload

from .fleet import run_many
from .redraw import resolve
from .run import check_load, make_load, servable
from .setup import Setup
from .summary import run_record

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_POLICIES = ("static", "slots", "orca", "prefill-first", "chunked")
SMALL = 2000
"""Up to so many requests, starting processes costs more than it saves."""


@dataclass(frozen=True)
class Comparison:
    """What `compare` returns; `result` is what the command line prints as JSON."""

    result: dict[str, Any]

    @property
    def runs(self) -> pd.DataFrame:
        """One row a run; latency spreads are flattened to columns such as ``ttft_s.p99``."""
        import pandas as pd

        return pd.json_normalize(self.result["runs"])

    @property
    def effects(self) -> pd.DataFrame:
        """One row a run after the first: its ratios to the first, split into layout and policy."""
        import pandas as pd

        return pd.json_normalize(self.result["effects"])


@dataclass(frozen=True)
class _Task:
    setup: Setup
    workload: Workload
    concurrency: int | None
    think_s: float
    out: Path | None


def compare(
    workload: Workload | str | Path = "default",
    *,
    policies: Sequence[str] = DEFAULT_POLICIES,
    layouts: Sequence[str] = ("auto",),
    requests: int | None = None,
    rate: float | None = None,
    concurrency: int | None = None,
    think_s: float = 0.0,
    seed: int = 0,
    traces: str | Path | None = None,
    jobs: int | None = None,
    skip_bad: bool = False,
    on_run: Callable[[], None] = lambda: None,
    **settings: Any,
) -> Comparison:
    """Run every policy in every layout on the same requests.

    Args:
        workload: as for `simulate`.
        policies: names.
        layouts: ``auto`` (each policy's own), ``padded``, ``ragged``.
        requests: as for `simulate`.
        rate: as for `simulate`.
        concurrency: as for `simulate`.
        think_s: as for `simulate`.
        seed: as for `simulate`.
        traces: folder that receives a trace of each run, ``POLICY-LAYOUT.trace``.
        jobs: processes; None: one a core for large workloads, one process for small ones.
        skip_bad: leave out and count requests that one of the policies could never serve.
        on_run: called when a run has ended.
        settings: as for `simulate`.

    Raises:
        UserError: a wrong setting or file; a request that can never run under one of the policies.
    """
    check_load(concurrency, rate, think_s)
    workload = resolve(workload, requests=requests, rate=rate, seed=seed)
    if not policies:
        raise ConfigError("policies is empty; name at least one")
    wanted = list(dict.fromkeys((p, _layout(p, lay)) for p in policies for lay in layouts))
    extra = _between(wanted)
    setups = [_setup(settings, *pair) for pair in [*wanted, *extra]]
    workload = servable([setup.build() for setup in setups], workload, skip_bad=skip_bad)
    make_load(workload, concurrency=concurrency, think_s=think_s)
    if traces is not None:
        made_folder(traces)
    tasks = [
        _Task(setup, workload, concurrency, think_s, _trace_path(traces, *pair))
        for setup, pair in zip(setups, [*wanted, *extra], strict=True)
    ]
    if jobs is None and len(workload) <= SMALL:
        jobs = 1
    records: dict[int, dict[str, Any]] = {}
    for index, record in run_many(_run, tasks, jobs=jobs):
        records[index] = record
        on_run()
    runs = [records[index] for index in range(len(tasks))]
    return Comparison(_result(workload, tasks[0].setup, runs, len(wanted), seed))


def _run(task: _Task) -> dict[str, Any]:
    load = make_load(task.workload, concurrency=task.concurrency, think_s=task.think_s)
    meta = {"load": {"concurrency": task.concurrency, "think_s": task.think_s}}
    return run_record(task.setup.build(), task.workload, load, out=task.out, meta=meta)


def _setup(settings: dict[str, Any], policy: str, layout: str) -> Setup:
    return Setup.of({**settings, "policy": policy, "layout": layout})


def _layout(policy: str, layout: str) -> str:
    kind = find_policy(policy)
    return kind.layout if layout == "auto" else layout


def made_folder(folder: str | Path) -> None:
    """Make a folder for traces, and those above it; raises UserError where that is not possible."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error


def _trace_path(folder: str | Path | None, policy: str, layout: str) -> Path | None:
    if folder is None:
        return None
    return Path(folder) / f"{policy.replace(':', '.')}-{layout}.trace"


def _between(wanted: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Runs needed to split effects: the first run's policy in every other layout that occurs."""
    first_policy, first_layout = wanted[0]
    layouts = {layout for _, layout in wanted if layout != first_layout}
    return [(first_policy, layout) for layout in sorted(layouts) if (first_policy, layout) not in wanted]


def _result(workload: Workload, setup: Setup, runs: list[dict[str, Any]], num_wanted: int, seed: int) -> dict[str, Any]:
    system = setup.build()
    return {
        "workload": {"name": workload.name, "requests": len(workload), "digest": workload.digest()},
        "skipped": dict(workload.skipped),
        "seed": seed,
        "settings": {k: v for k, v in system.describe()["settings"].items() if k not in ("policy", "layout")},
        "num_blocks": system.config.num_blocks,
        "runs": runs[:num_wanted],
        "effects": effects(runs, num_wanted),
        "runs_between": runs[num_wanted:],
    }


def effects(runs: list[dict[str, Any]], num_wanted: int) -> list[dict[str, Any]]:
    """For each run after the first: its figures as ratios to the first run's, total = layout x policy.

    The layout's part is the first policy moved to the run's layout; the policy's part is what remains.
    """
    first = runs[0]
    by_pair = {(run["policy"], run["layout"]): run for run in runs}
    found = []
    for run in runs[1:num_wanted]:
        between = by_pair[(first["policy"], run["layout"])]
        ratios = {
            name: {"total": _ratio(pick(run), pick(first)), "layout": _ratio(pick(between), pick(first)),
                   "policy": _ratio(pick(run), pick(between))}
            for name, pick in _COMPARED.items()
        }  # fmt: skip
        pair = {"from": _pair(first), "to": _pair(run), "by_way_of": _pair(between)}
        found.append({**pair, **ratios})
    return found


_COMPARED: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "output_tokens_per_s": lambda run: run["output_tokens_per_s"],
    "makespan_s": lambda run: run["makespan_s"],
    "e2e_mean_s": lambda run: (run["e2e_s"] or {}).get("mean"),
    "ttft_mean_s": lambda run: (run["ttft_s"] or {}).get("mean"),
    "computed_tokens": lambda run: run["computed_tokens"],
}


def _pair(run: dict[str, Any]) -> str:
    return f"{run['policy']}/{run['layout']}"


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
