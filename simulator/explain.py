"""One paragraph on a run: what bounds it, the evidence, and the next knob with its simulated effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.errors import ConfigError, InputError, UserError
from traces.presets import at_rate
from traces.record import record_of
from traces.trace import Trace
from traces.workload import Workload

from .bounds import BOUNDS, WAITING, Diagnosis, diagnose, priced
from .costs import CostModel
from .knobs import Knob, knobs_for
from .redraw import resolve
from .run import check_load, make_load, run, servable
from .setup import Setup
from .slo import Figure

MOST_TRIED = 3
"""Knobs that are simulated before the best of them is taken."""
HELPS = 0.02
"""A knob helps when throughput rises or the mean request time falls by more than this fraction."""
FACTOR = 3
"""From so many times on, a change is told as a factor, not in percent."""
SHOWN = ("output_tokens_per_s", "ttft_p99", "tpot_p99", "e2e_mean", "e2e_p99")
"""Figures before and after."""


@dataclass(frozen=True)
class Explanation:
    """What bounds a run and what to turn next.

    Attributes:
        text: one paragraph.
        bound: a key of `simulator.bounds.BOUNDS`.
        evidence: the figures behind it; `evidence["record"]` is the run's record.
        knob: what to change: ``{"name", "before", "after"}``; None where we know of none.
        before, after: figures without and with the knob changed; `after` is None where that was not simulated.
        tried: every knob that was simulated, with its figures.
    """

    text: str
    bound: str
    evidence: dict[str, Any]
    knob: dict[str, Any] | None
    before: dict[str, float | None]
    after: dict[str, float | None] | None
    tried: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dict(vars(self))


@dataclass(frozen=True)
class Description:
    """What bounds a run, without a knob tried.

    Attributes:
        text: two or three sentences.
        bound: a key of `simulator.bounds.BOUNDS`.
        evidence: the figures behind it; `evidence["record"]` is the run's record.
    """

    text: str
    bound: str
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A run to explain and what it takes to run it again with something changed.

    Attributes:
        trace: the run.
        setup: its settings; None where they are not known (a measured run).
        workload: its requests; None where they are not at hand.
        concurrency, think_s: its load.
    """

    trace: Trace
    setup: Setup | None
    workload: Workload | None
    concurrency: int | None = None
    think_s: float = 0.0


def explain(
    workload: Workload | str | Path = "default",
    *,
    requests_from: Workload | str | Path | None = None,
    concurrency: int | None = None,
    think_s: float = 0.0,
    seed: int = 0,
    requests: int | None = None,
    rate: float | None = None,
    reading: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    on_run: Callable[[], None] = lambda: None,
    **settings: Any,
) -> Explanation:
    """Say what bounds a run, and simulate the next knob.

    Args:
        workload: as for `simulate`; or the folder of a step trace, whose settings are then those of the run.
        requests_from: for a trace: the workload it was recorded with, to simulate the knob on.
        concurrency: as for `simulate`.
        think_s: as for `simulate`.
        seed: as for `simulate`.
        requests: so many (of a file: its first).
        rate: requests per second.
        reading: further options of `traces.presets.resolve_workload`.
        skip_bad: leave out and count requests that could never be served, instead of refusing the workload.
        on_run: called after each simulation.
        settings: as for `simulate`.

    Raises:
        UserError: a wrong setting or file; a workload that is not the trace's.
    """
    options: dict[str, Any] = {"seed": seed, "requests": requests, "rate": rate, "reading": reading}
    if not isinstance(workload, Workload) and is_trace(workload):
        if settings or concurrency is not None:
            names = ", ".join([*settings, *(["concurrency"] if concurrency is not None else [])])
            raise ConfigError(f"{names}: the settings of a recorded run are in its trace; expected none here")
        case = recorded_case(Trace.open(workload), requests_from, options)
    else:
        check_load(concurrency, rate, think_s)
        setup = Setup.of(settings)
        drawn = servable([setup.build()], resolve(workload, **options), skip_bad=skip_bad)
        case = simulated_case(drawn, setup, concurrency, think_s)
        on_run()
    return explain_case(case, on_run)


def describe(trace: Trace, cost_model: CostModel | None = None, record: Mapping[str, Any] | None = None) -> Description:
    """Say what bounds a run, simulated or measured, from its trace alone; nothing is simulated.

    Args:
        trace: the run.
        cost_model: prices its steps again; None: device and host time stay whole, as for a measured run.
        record: the run's record, where it is known already.

    Raises:
        InputError: the trace holds no steps.
    """
    _check_steps(trace)
    found = diagnose(trace, cost_model, record)
    return Description(_paragraph(found), found.bound, found.evidence)


def is_trace(path: str | Path) -> bool:
    """Whether a path is the folder of a step trace."""
    return (Path(path) / "meta.json").is_file()


def simulated_case(workload: Workload, setup: Setup, concurrency: int | None = None, think_s: float = 0.0) -> Case:
    """Run a workload and keep what it takes to run it again."""
    load = make_load(workload, concurrency=concurrency, think_s=think_s)
    meta = {"load": {"concurrency": concurrency, "think_s": think_s}}
    return Case(run(setup.build(), workload, load, meta=meta), setup, workload, concurrency, think_s)


def recorded_case(trace: Trace, source: Workload | str | Path | None, options: dict[str, Any]) -> Case:
    """A recorded run; its requests from `source`, or from the trace where that tells all there is to know of them."""
    _check_steps(trace)
    load, meta = trace.meta.get("load", {}), trace.meta
    setup = Setup.of(_with_tuples(meta["settings"])) if meta.get("source") == "simulated" else None
    return Case(trace, setup, _requests_of(trace, source, options), load.get("concurrency"), load.get("think_s") or 0.0)


def _check_steps(trace: Trace) -> None:
    if not len(trace.column("steps", "step")):
        raise InputError("holds no steps; there is nothing to explain", path=trace.path)


def explain_case(case: Case, on_run: Callable[[], None] = lambda: None) -> Explanation:
    """Diagnose a run and try knobs until one helps."""
    cost_model = None
    if case.setup is not None and case.setup.cost.partition(":")[0] != "recorded":
        cost_model = case.setup.build().cost_model
    found = diagnose(case.trace, cost_model)
    before = _figures(found.evidence["record"])
    knobs = [] if case.setup is None else knobs_for(found.bound, case.setup, case.concurrency, case.workload)
    tried = []
    for knob in knobs[:MOST_TRIED]:
        if case.workload is None:
            break
        after = _with_knob(case, knob)
        tried.append((knob, after))
        on_run()
        if isinstance(after, dict) and (knob.measures_room or _helps(before, after)):
            break
    return _explanation(found, before, knobs, tried, case)


def _with_knob(case: Case, knob: Knob) -> dict[str, float | None] | str:
    """The figures with the knob changed, or the sentence why it cannot be."""
    assert case.setup is not None
    workload = case.workload
    assert workload is not None
    try:
        if knob.name == "rate":
            workload = at_rate(workload, knob.after)
        concurrency = knob.after if knob.name == "concurrency" else case.concurrency
        after = simulated_case(workload, knob.applied(case.setup), concurrency, case.think_s)
    except UserError as error:
        return str(error)
    return _figures(record_of(after.trace))


def _explanation(
    found: Diagnosis, before: dict[str, float | None], knobs: list[Knob],
    tried: list[tuple[Knob, dict[str, float | None] | str]], case: Case,
) -> Explanation:  # fmt: skip
    ran = [(knob, after) for knob, after in tried if isinstance(after, dict)]
    best = max(ran, key=lambda pair: _gain(before, pair[1]), default=None)
    chosen = best[0] if best is not None else knobs[0] if knobs else None
    after = None if best is None else best[1]
    return Explanation(
        text=f"{_paragraph(found)} {_next(before, chosen, after, case)}",
        bound=found.bound,
        evidence=found.evidence,
        knob=None if chosen is None else chosen.as_dict(),
        before=before,
        after=after,
        tried=[
            {**knob.as_dict(), **({"after_figures": result} if isinstance(result, dict) else {"error": result})}
            for knob, result in tried
        ],
    )


def _paragraph(found: Diagnosis) -> str:
    return f"{_what(found)} {_evidence(found)}"


def _what(found: Diagnosis) -> str:
    record = found.evidence["record"]
    failed = record["finish_reasons"].get("error", 0)
    said = f"{failed:,} of {record['requests']:,} requests fail: they outgrow the KV pool. " if failed else ""
    served = f"{record['finished']:,} requests under {record['policy']} ({record['layout']})"
    speed = f"{record['output_tokens_per_s'] or 0:,.0f} output tokens/s"
    kept = " and falls behind its arrivals" if record["saturated"] else ""
    if record["saturated"] is False and sum(found.evidence["waiting"].values()) < WAITING:
        kept = " and keeps up with its arrivals, which set that speed"
    return f"{said}This run serves {served} at {speed}{kept}. What bounds it is {BOUNDS[found.bound]}."


def _evidence(found: Diagnosis) -> str:
    """The figures that matter, the telling ones first."""
    e, record = found.evidence, found.evidence["record"]
    reason = max(e["waiting"], key=lambda name: e["waiting"][name])
    parts = sorted(((share, name) for name, share in e["parts"].items()), reverse=True)
    told = _PARTS if priced(e["parts"]) else {**_PARTS, "other": "the device"}
    said = [f"The server is idle {e['idle']:.0%} of the time"]
    if sum(e["waiting"].values()) > 0:
        said.append(
            f"the queue's head waits {sum(e['waiting'].values()):.0%} of the time, mostly for {_REASONS[reason]}"
        )
    else:
        said.append("nobody waits")
    if found.bound == "blocks":
        said[1:1] = _pool(e)
    said.append(f"a step computes {e['mean_rows']:,.0f} rows for {e['mean_running']:,.1f} running requests")
    said.append("its time goes to " + ", ".join(f"{told[name]} {share:.0%}" for share, name in parts if share >= 0.05))
    if e["padding"] >= 0.01:
        said.append(f"padding takes {e['padding']:.0%}")
    if record["preemptions"]:
        said.append(f"{record['preemptions']:,} preemptions, {record['recomputed_tokens']:,} tokens computed again")
    if found.bound != "blocks":
        said += _pool(e)
    return "; ".join(said) + "."


def _pool(evidence: Mapping[str, Any]) -> list[str]:
    share = evidence["blocks_full"]
    return [f"the KV pool is nearly full {share:.0%} of the time"] if share >= 0.01 else []


_REASONS = {"seqs": "a slot", "tokens": "token budget", "blocks": "KV blocks", "batch-closed": "the batch to end"}
_PARTS = {
    "compute": "arithmetic", "attention": "attention", "weights": "streaming weights", "host": "the host",
    "other": "everything else",
}  # fmt: skip


def _next(
    before: Mapping[str, float | None], knob: Knob | None, after: Mapping[str, float | None] | None, case: Case
) -> str:
    if case.setup is None:
        return "The run was measured, not simulated, so no knob was tried."
    if knob is None:
        return "No setting that we know of would change that."
    change = f"Next knob: {knob}"
    if after is None:
        why = "the workload was not given" if case.workload is None else "it cannot run here"
        return f"{change}; its effect was not simulated, because {why}."
    changes = [_change(name, before[name], after[name]) for name in SHOWN]
    verdict = "Simulated with it"
    if knob.measures_room:
        verdict = "There is room: simulated with it"
    elif not _helps(before, after):
        verdict = "It hardly helps: simulated with it"
    return f"{change}. {verdict}, " + ", ".join(text for text in changes if text) + "."


def _change(name: str, old: float | None, new: float | None) -> str:
    if old is None or new is None or not old:
        return ""
    label = _LABELS[name]
    shown = f"{old:,.0f} to {new:,.0f}" if name == "output_tokens_per_s" else f"{old:.3g} to {new:.3g} s"
    return f"{label} {shown} ({_difference(old, new)})"


def _difference(old: float, new: float) -> str:
    """In percent; as a factor where percents say little."""
    if new >= FACTOR * old:
        return f"{new / old:,.3g} times as much"
    if 0 < new <= old / FACTOR:
        return f"{old / new:,.3g} times less"
    return f"{new / old - 1:+.0%}"


_LABELS = {
    "output_tokens_per_s": "output tokens/s", "ttft_p99": "p99 TTFT", "tpot_p99": "p99 TPOT", "e2e_mean": "mean E2E",
    "e2e_p99": "p99 E2E",
}  # fmt: skip


def _figures(record: Mapping[str, Any]) -> dict[str, float | None]:
    latencies = {name: Figure(name).of(record) for name in SHOWN[1:]}
    return {"output_tokens_per_s": record["output_tokens_per_s"], **latencies}


def _gain(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> float:
    """The larger of the fractions by which throughput rises and mean request time falls."""
    speed, old_speed = after["output_tokens_per_s"], before["output_tokens_per_s"]
    time_s, old_s = after["e2e_mean"], before["e2e_mean"]
    faster = speed / old_speed - 1 if speed and old_speed else 0.0
    shorter = 1 - time_s / old_s if time_s and old_s else 0.0
    return max(faster, shorter)


def _helps(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> bool:
    return _gain(before, after) > HELPS


def _requests_of(trace: Trace, source: Workload | str | Path | None, options: dict[str, Any]) -> Workload | None:
    """The workload of a trace, held against the digest that the trace knows it by."""
    recorded = trace.meta.get("workload", {})
    if source is not None:
        workload = resolve(source, **options)
        if recorded.get("digest") not in (None, workload.digest()):
            raise ConfigError(
                f"workload {workload.name} is not the one of this trace ({recorded.get('name')}, "
                f"{recorded.get('requests')} requests); expected the same file and options"
            )
        return workload
    columns = trace.columns("requests", ["request", "arrival_s", "prompt_tokens", "output_tokens"])
    order = np.argsort(columns["request"])
    arrival_s, prompt, output = (columns[name][order] for name in ("arrival_s", "prompt_tokens", "output_tokens"))
    if not recorded or output.min() < 1 or np.any(np.diff(arrival_s) < 0):
        return None
    told = Workload(arrival_s, prompt.astype(np.int64), output.astype(np.int64), name=recorded["name"])
    return told if told.digest() == recorded["digest"] else None  # with contents or limits of their own there is more


def _with_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
