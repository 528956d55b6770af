"""Scenarios: questions that people asked in public, as runs to compare, with the direction of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dashboard.runs.request import RunRequest
from scheduler.errors import ConfigError, unknown_name

FOLDER = Path(__file__).resolve().parent / "scenarios"
"""One YAML file each, ``NN-key.yaml``; the number orders them."""
_MOST_VARIANTS = 4
"""As many runs as are shown side by side."""


@dataclass(frozen=True)
class Variant:
    """One of the runs that a scenario compares: what it sets differently.

    Attributes:
        label: what it is called; names it in `Expectation.order`.
        settings: over the scenario's settings.
        workload: instead of the scenario's workload.
        concurrency: instead of the scenario's.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] | None = None
    concurrency: int | None = None


@dataclass(frozen=True)
class Expectation:
    """What must hold of one figure of the runs' records (`traces.record`), either of an order or of one run.

    Attributes:
        figure: a field of the record, dotted: ``ttft_s.p99``.
        order: labels from the smallest figure to the largest; each must be larger than the one before,
        by_at_least: and so many times as large at least.
        at_most_by: and so many times as large at most.
        of: the label of one run, whose figure must be
        at_most: no larger than this.
    """

    figure: str
    order: tuple[str, ...] = ()
    by_at_least: float = 1.0
    at_most_by: float | None = None
    of: str | None = None
    at_most: float | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The runs that it speaks of."""
        return self.order if self.of is None else (self.of,)

    def failure(self, records: Mapping[str, Mapping[str, Any]]) -> str | None:
        """What does not hold, in a sentence; None where all does.

        Args:
            records: label -> record of that run.

        Raises:
            ConfigError: a record has no such figure.
        """
        values = [figure_of(records[label], self.figure) for label in self.labels]
        if self.at_most is not None:
            return None if values[0] <= self.at_most else f"{self.figure} of {self.of} is {values[0]:.6g}"
        for label, low, high in zip(self.order[1:], values, values[1:], strict=False):
            too_far = self.at_most_by is not None and high > self.at_most_by * low
            if high <= low or high < self.by_at_least * low or too_far:
                return f"{self.figure} of {label} is {high:.6g}, of the one before it {low:.6g}"
        return None


@dataclass(frozen=True)
class Scenario:
    """A question that somebody asked in public, and the runs that answer it.

    Attributes:
        key: its name in addresses.
        title, question: what is asked, in the words of this project.
        source: where it was asked.
        numbers: what was measured there.
        model, hardware, cost: as for `simulator.setup.Setup`.
        workload: as for `dashboard.runs.workload_spec.workload_of`.
        variants: two to four runs.
        watch: keys of the panels that show it.
        answer: what is to be seen, and where the scenario departs from its source.
        expect: the directions of the answer.
        settings: common to all variants.
        concurrency: closed-loop clients instead of arrival times.
    """

    key: str
    title: str
    question: str
    source: str
    numbers: str
    model: str
    hardware: str
    workload: Mapping[str, Any]
    variants: tuple[Variant, ...]
    watch: tuple[str, ...]
    answer: str
    expect: tuple[Expectation, ...]
    cost: str = "roofline"
    settings: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int | None = None

    def requests_of(self) -> list[dict[str, Any]]:
        """One request a variant, as `dashboard.runs.request.RunRequest.of` takes it; all with the same seed."""
        return [self._request(variant) for variant in self.variants]

    def _request(self, variant: Variant) -> dict[str, Any]:
        system = {"model": self.model, "hardware": self.hardware, "cost": self.cost}
        concurrency = self.concurrency if variant.concurrency is None else variant.concurrency
        return {
            "label": variant.label,
            "workload": dict(self.workload if variant.workload is None else variant.workload),
            "settings": {**system, **self.settings, **variant.settings},
            "seed": 0,
            **({} if concurrency is None else {"concurrency": concurrency}),
        }


def scenarios() -> list[Scenario]:
    """All scenarios that ship with the project, in order; raises ConfigError for a file that is none."""
    return list(_loaded())


def scenario_named(key: str) -> Scenario:
    """The scenario of that key; raises ConfigError for a name that is none."""
    known = {scenario.key: scenario for scenario in scenarios()}
    if key not in known:
        raise unknown_name("scenario", key, known)
    return known[key]


def load_scenario(path: Path) -> Scenario:
    """A scenario from its file; raises ConfigError naming the file and the field."""
    try:
        return _scenario(path.stem.partition("-")[2], yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigError(f"{path.name}{line}: not valid YAML") from error
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error


def figure_of(record: Mapping[str, Any], name: str) -> float:
    """A figure of a run's record by its dotted name; raises ConfigError where there is none."""
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"figure {name} is {value!r} in this run; expected a figure that every run has")
    return float(value)


@cache
def _loaded() -> tuple[Scenario, ...]:
    return tuple(load_scenario(path) for path in sorted(FOLDER.glob("*.yaml")))


def _scenario(key: str, given: Any) -> Scenario:
    made: Scenario = _build("scenario", Scenario, {"key": key, **_mapping("scenario", given)})
    labels = [variant.label for variant in made.variants]
    if not 2 <= len(labels) <= _MOST_VARIANTS or len(set(labels)) < len(labels):
        raise ConfigError(f"variants has the labels {labels}; expected 2 to {_MOST_VARIANTS} different ones")
    for expectation in made.expect:
        for label in expectation.labels:
            if label not in labels:
                raise unknown_name("label in expect", label, labels)
    for request in made.requests_of():
        RunRequest.of(request).check()
    return made


def _build(what: str, kind: type[Any], given: Mapping[str, Any]) -> Any:
    """An instance of one of the classes above from a mapping of YAML values."""
    known = [each.name for each in fields(kind)]
    for name in given:
        if name not in known:
            raise unknown_name(f"field of a {what}", str(name), known)
    try:
        return kind(**{name: _READERS.get(name, _plain)(name, value) for name, value in given.items()})
    except TypeError as error:  # a field without a default was not given
        missing = ", ".join(name for name in known if f"'{name}'" in str(error))
        raise ConfigError(f"a {what} has no {missing}; expected it") from error


def _plain(name: str, value: Any) -> Any:
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is {value!r}; expected a text")
    return value.strip()


def _source(name: str, value: Any) -> str:
    if not _text(name, value).startswith("https://"):
        raise ConfigError(f"{name} is {value!r}; expected an https address")
    return _text(name, value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r}; expected a number")
    return float(value)


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r}; expected a mapping of names to values")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{name} is {value!r}; expected a list")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(_text(name, item) for item in _list(name, value))


def _variants(name: str, value: Any) -> tuple[Variant, ...]:
    return tuple(_build("variant", Variant, _mapping(name, item)) for item in _list(name, value))


def _expect(name: str, value: Any) -> tuple[Expectation, ...]:
    made = tuple(_build("expectation", Expectation, _mapping(name, item)) for item in _list(name, value))
    for each in made:
        one, several = each.of is not None and each.at_most is not None, len(each.order) > 1
        if one == several:
            raise ConfigError(f"expect of {each.figure} is unclear; expected an order of labels, or of with at_most")
    return made


_READERS = {
    **dict.fromkeys(("title", "question", "numbers", "model", "hardware", "cost", "answer", "label", "figure"), _text),
    **dict.fromkeys(("workload", "settings"), _mapping),
    **dict.fromkeys(("by_at_least", "at_most_by", "at_most"), _number),
    **dict.fromkeys(("watch", "order"), _texts),
    "of": _text,
    "source": _source,
    "variants": _variants,
    "expect": _expect,
}
"""Field of any of the classes -> how its YAML value is read."""
