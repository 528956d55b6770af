"""What a page asks to be run, checked before it takes a place in the queue."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError, unknown_name
from simulator.costs import cost_model_names
from simulator.grid import Grid, check_grid
from simulator.models import model_names
from simulator.run import check_load
from simulator.setup import Setup
from simulator.slo import Figure
from traces.metrics import check_slo

from .workload_spec import NEVER_WRONG, check_spec, number_field, text_field, whole_field

KINDS = ("simulate", "sweep")
MOST_POINTS = 400
"""Combinations of one sweep."""
MOST_LABEL = 120
"""Characters of a run's label."""
_NAME = r"[A-Za-z0-9][\w.-]*"
_MODEL = re.compile(rf"({_NAME}/)?{_NAME}")
_COST = rf"{_NAME}(:\w+=[\w.+-]+(,\w+=[\w.+-]+)*)?"
_COSTS = re.compile(rf"{_COST}(,{_COST})*")
_FILE_OPTION = re.compile(r"[:,](path|dir)=")
"""Options of cost models that name a file or a folder."""


@dataclass(frozen=True)
class RunRequest:
    """One run to do. Raises ConfigError, naming the field, for what can be told before the run.

    Attributes:
        workload: as for `dashboard.runs.workload_spec.workload_of`.
        settings: flat, as for `simulator.run.simulate`; None is a setting not given.
        kind: ``simulate``, or ``sweep`` over `grid`.
        label: what people call the run.
        seed: of all randomness.
        concurrency: closed-loop clients instead of arrival times.
        think_s: seconds such a client waits.
        skip_bad: leave out requests that could never be served, instead of refusing the workload.
        explain: also say what bounds the run and simulate the next knob (`simulator.explain`).
        grid: of a sweep: name -> values, as for `simulator.sweep.sweep`.
        latency: of a sweep: the figure that its Pareto front sets against throughput.
        slo: of a sweep: limits that each request must meet for its goodput, as for `Trace.summary`; None: none.
    """

    workload: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "simulate"
    label: str = ""
    seed: int = 0
    concurrency: int | None = None
    think_s: float = 0.0
    skip_bad: bool = False
    explain: bool = False
    grid: Mapping[str, Any] = field(default_factory=dict)
    latency: str = "e2e_p99"
    slo: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("kind of run", str(self.kind)[:MOST_LABEL], KINDS)
        object.__setattr__(self, "label", _label(self.label))
        for name in ("workload", "settings", "grid"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected a mapping of names to values")
        given = {name: value for name, value in self.settings.items() if value is not None}
        object.__setattr__(self, "settings", given)
        for name in ("skip_bad", "explain"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected true or false")
        self._check_load()

    def _check_load(self) -> None:
        whole_field("seed", self.seed, least=0, most=NEVER_WRONG)
        if self.concurrency is not None:
            whole_field("concurrency", self.concurrency, least=1, most=1_000_000)
        if isinstance(self.think_s, bool) or not isinstance(self.think_s, int | float):
            raise ConfigError(f"think_s is {self.think_s!r}; expected seconds >= 0")
        if self.kind == "simulate":  # a sweep may vary the number of clients
            check_load(self.concurrency, self.workload.get("rate"), self.think_s)

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> RunRequest:
        """From plain values, as JSON holds them."""
        known = [each.name for each in fields(cls)]
        for name in asked:
            if name not in known:
                raise unknown_name("field of a run", str(name)[:MOST_LABEL], known)
        if "workload" not in asked:
            raise ConfigError("the run has no workload; expected one, as in {kind: preset, name: default}")
        return cls(**asked)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `of` makes the same request of it."""
        return asdict(self)

    def check(self, allowed: Collection[str] = ()) -> None:
        """Hold settings and grid against the program, as the command line does before a run.

        Args:
            allowed: policies and cost models ``module:Class`` and model files that whoever runs the dashboard has
                given; any other name that would load code or read a file is refused.

        Raises:
            ConfigError: a setting that is unknown, out of range, or not to be had from a page.
        """
        check_spec(self.workload)
        checked_settings(self.settings, allowed)
        if self.kind == "sweep":
            checked_grid(self.grid, allowed)
            Figure(self.latency)
            check_slo(self.slo or {})


def checked_settings(settings: Mapping[str, Any], allowed: Collection[str] = ()) -> Setup:
    """The setup of flat settings; raises ConfigError as `RunRequest.check` does."""
    for name, value in settings.items():
        _check_plain(name, value)
        if isinstance(_DEFAULTS.get(name), str):
            _check_name(name, value, allowed)
        elif isinstance(_DEFAULTS.get(name), float):
            number_field(name, value, above=-NEVER_WRONG)
    setup = Setup.of(settings)
    if not _means_folder(setup.model):
        setup.build()
    return setup


def checked_grid(grid: Mapping[str, Any], allowed: Collection[str] = ()) -> Grid:
    """The grid of a sweep with its values; raises ConfigError, also for too many combinations."""
    for name, values in grid.items():
        listed = isinstance(values, list | tuple)
        for value in values if listed else [values]:
            _check_plain(name, value)
            if isinstance(_DEFAULTS.get(name), str):
                _check_name(name, value, allowed)
    models = grid.get("model", [])
    if any(_means_folder(model) for model in ([models] if isinstance(models, str) else models)):
        return dict(grid)
    checked = check_grid(grid)
    points = math.prod(map(len, checked.values()))
    if points > MOST_POINTS:
        raise ConfigError(f"the grid has {points:,} combinations; expected at most {MOST_POINTS}")
    return checked


def _check_plain(name: object, value: object) -> None:
    """Raise ConfigError for what no setting takes: nested values, endless texts and numbers."""
    text_field("name of a setting", name)
    if isinstance(value, list | tuple):
        for item in value:
            whole_field(f"{name}", item, least=-NEVER_WRONG, most=NEVER_WRONG)
    elif isinstance(value, str):
        text_field(f"{name}", value)
    elif value is not None and not (isinstance(value, int | float) and -NEVER_WRONG <= value <= NEVER_WRONG):
        raise ConfigError(f"{name} is out of range; expected a plain value")


def _check_name(name: str, value: object, allowed: Collection[str]) -> None:
    """Raise ConfigError for a name that would load code or read a file."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}; expected a name")
    if value in allowed or name not in _PATTERNS:
        return
    pattern, known = _PATTERNS[name]
    parts = [value] if name == "cost" else value.split(",")
    reads = value.endswith(".json") or (name == "cost" and _FILE_OPTION.search(value))
    if not all(pattern.fullmatch(part) for part in parts) or reads:
        raise ConfigError(f"{name} is {value!r}; expected a name that this dashboard offers: {', '.join(known())}")


def _means_folder(model: str) -> bool:
    """Whether a folder of that name lies here: it would be read. The worker's folder has none, so it checks again."""
    return any(Path(name.strip()).exists() for name in model.split(","))


def _policies() -> list[str]:
    from scheduler.policies import policy_names

    return sorted(policy_names())


_PATTERNS = {
    "model": (_MODEL, model_names),
    "policy": (re.compile(_NAME), _policies),
    "cost": (_COSTS, cost_model_names),
}
"""Settings whose values are names that could also mean code or files -> what may be said, and the names there are."""


_DEFAULTS: dict[str, Any] = {each.name: each.default for kind in (Setup, SchedulerConfig) for each in fields(kind)}
"""Setting -> its default, whose type tells what it takes."""


def _label(text: object) -> str:
    """One line for people; it stays text wherever it is shown."""
    if not isinstance(text, str):
        raise ConfigError(f"label is {text!r}; expected a text")
    return "".join(letter for letter in text if letter.isprintable()).strip()[:MOST_LABEL]
