"""The traces that a cost is fitted to: read, checked, and told apart where they are of different things."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.errors import ConfigError, InputError
from traces.probes import probes_of, seconds_around
from traces.sound import open_checked
from traces.store import Columns
from traces.trace import Trace

from .calibration_fit import EVEN
from .calibration_layout import Steps
from .costs.fit_terms import SHAPE_COLUMNS, Floats, features_in
from .costs.fitted_file import SHAPE, modes_of
from .models import ModelSheet
from .recorded_model import recorded_model


@dataclass(frozen=True)
class Source:
    """A recorded run.

    Attributes:
        path: its folder, as the user named it.
        layout: of its steps.
        model: sheet of the model that ran.
        facts: what else all traces of one fit must share: ``hardware``, ``dtype``, ``ops``, ``tensor_parallel``,
            ``source``.
        modes: how the engine ran (`fitted_file.MODES`).
        steps: what it did and how long that took.
        slowness_s: what the probe took around each step, ``(steps,)`` seconds; None: none ran beside it.
        told: what the cost file says of it.
    """

    path: str
    layout: str
    model: ModelSheet
    facts: Mapping[str, Any]
    modes: Mapping[str, bool]
    steps: Steps
    slowness_s: Floats | None
    told: Mapping[str, Any]

    def at(self, probe_s: float) -> Steps:
        """The steps as they would have been where the probe takes `probe_s`; as they were where none ran."""
        if self.slowness_s is None:
            return self.steps
        faster = probe_s / self.slowness_s
        device_s, host_s = self.steps.device_s * faster, self.steps.host_s * faster
        return replace(self.steps, device_s=device_s, host_s=host_s, slower=EVEN)


def probe_mean_s(sources: Sequence[Source]) -> float | None:
    """What the probe took beside the steps of all sources on average; None where none ran."""
    found = [source.slowness_s for source in sources if source.slowness_s is not None]
    return float(np.concatenate(found).mean()) if found else None


def read_source(path: str | Path) -> Source:
    """Read a step trace; raises InputError for one that is unsound or says too little of its model."""
    trace = open_checked(path)
    meta = trace.meta
    columns = trace.columns("steps", [*SHAPE_COLUMNS.values(), "device_s", "host_s"])
    steps = _steps(columns, path)
    slowness_s = _slowness_s(trace)
    config = meta.get("config", {})
    modes = modes_of(config.get("async_scheduling"), config.get("cudagraph_capture_sizes"))
    return Source(
        path=str(path),
        layout=str(meta["layout"]),
        model=_model(trace),
        facts=_facts(meta),
        modes=modes,
        steps=steps,
        slowness_s=slowness_s,
        told={
            "trace": Path(path).resolve().name,
            "sha256": _digest(columns),
            "source": meta["source"],
            "policy": meta["policy"],
            "layout": meta["layout"],
            **modes,
            "steps": len(steps),
            "probe_s": None if slowness_s is None else float(slowness_s.mean()),
            "requests": meta.get("workload", {}).get("requests"),
            "software": meta.get("software", {}),
        },
    )


def check_alike(sources: Sequence[Source]) -> None:
    """Raise ConfigError, naming both, for traces that no one cost can be of, or a trace that was given twice."""
    first = sources[0]
    seen: dict[str, str] = {}
    for source in sources:
        told = source.told["sha256"]
        if told in seen:
            raise ConfigError(f"{seen[told]} and {source.path} hold the same steps; give each recording once")
        seen[told] = source.path
        _check_model(first, source)
        for name, value in first.facts.items():
            if source.facts[name] != value:
                raise ConfigError(_differ(first, source, name, value, source.facts[name]))
    _check_modes(sources)


def _check_model(one: Source, other: Source) -> None:
    for name in SHAPE:
        if getattr(one.model, name) != getattr(other.model, name):
            raise ConfigError(_differ(one, other, "model", one.model.name, other.model.name))


def _check_modes(sources: Sequence[Source]) -> None:
    """Runs of one layout must have been made in one mode; its prices do not hold in another."""
    first: dict[str, Source] = {}
    for source in sources:
        one = first.setdefault(source.layout, source)
        for name, value in one.modes.items():
            if source.modes[name] != value:
                raise ConfigError(_differ(one, source, name, value, source.modes[name]))


def _differ(one: Source, other: Source, name: str, mine: object, theirs: object) -> str:
    return f"{one.path} has {name} {mine}, {other.path} has {theirs}; expected runs alike, or a file for each"


def _steps(columns: Columns, path: str | Path) -> Steps:
    device_s, host_s = columns["device_s"], columns["host_s"]
    if not len(device_s):
        raise InputError("has no steps; expected a run that did something", path=path)
    wrong = np.flatnonzero((device_s < 0) | (host_s < 0) | (device_s + host_s <= 0))
    if len(wrong):
        step = wrong[0]
        raise InputError(f"step {step} took {device_s[step] + host_s[step]:g} s; expected a time > 0", path=path)
    return Steps(features_in(columns), device_s, host_s, np.zeros(len(device_s), dtype=np.int64))


def _slowness_s(trace: Trace) -> Floats | None:
    times_s, seconds = probes_of(trace)
    return seconds_around(times_s, seconds, trace.column("steps", "t_end_s")) if len(times_s) else None


def _model(trace: Trace) -> ModelSheet:
    """The sheet of a measured run's architecture, or the one that a simulated run was priced with."""
    try:
        if "architecture" in trace.meta:
            return recorded_model(trace.meta)
        return ModelSheet(**trace.meta["cost_model"]["model"])
    except (KeyError, TypeError) as error:
        raise InputError("says too little of its model's shape (architecture in meta.json)", path=trace.path) from error


def _facts(meta: Mapping[str, Any]) -> dict[str, Any]:
    settings = meta.get("settings", {})
    return {
        "source": meta["source"],
        "hardware": str(meta.get("hardware")),
        "dtype": str(meta.get("dtype", settings.get("weight_dtype"))),
        "ops": meta.get("ops"),
        "tensor_parallel": meta.get("tensor_parallel", 1),
    }


def _digest(columns: Columns) -> str:
    sha = hashlib.sha256()
    for name in sorted(columns):
        sha.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
    return sha.hexdigest()
