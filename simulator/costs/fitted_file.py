"""The file of a fitted cost: read, checked field by field, and what it says of the runs it was fitted to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from scheduler.errors import InputError

from ..models import ModelSheet
from .fit_terms import CURVED, DEVICE, HOST, KINDS, REACH, Curve, Terms

FORMAT, VERSION = "batchscope cost", 1
LAYOUTS = ("padded", "ragged")
MODES = ("async_scheduling", "captured_graphs")
"""How the engine ran, beyond what shows in a step: prices of one mode do not hold in the other."""
SHAPE = tuple(f.name for f in fields(ModelSheet) if f.name not in ("name", "source", "max_positions"))
"""What of a model sheet decides what its steps cost."""
LARGEST = 64 * 2**20
"""Bytes of a file that is no cost file."""


@dataclass(frozen=True)
class LayoutFit:
    """Prices of one layout.

    Attributes:
        device, host: seconds of a step that nothing held up.
        mean_over_fit: mean seconds of all steps, in those: of ``device`` and of ``host``.
        reach: feature -> least and greatest value fitted on; what no step had is not there.
        kinds: kind of step -> how many were fitted on.
        modes: of `MODES`, how the engine ran.
        steps: steps fitted on.
    """

    device: Terms
    host: Terms
    mean_over_fit: tuple[float, float]
    reach: Mapping[str, tuple[float, float]]
    kinds: Mapping[str, int]
    modes: Mapping[str, bool]
    steps: int


@dataclass(frozen=True)
class CostFile:
    """A fitted cost.

    Attributes:
        name: how to call it in a sentence: its path.
        model: sheet of the model whose steps were timed.
        hardware, dtype, ops: what they ran on, in the words of their traces.
        tensor_parallel: devices that shared each layer.
        probe_s: what the probe took beside the steps, on average; None: none ran.
        source: ``measured``, or ``simulated`` where the traces were.
        layouts: layout -> its prices.
        document: the file as it stands.
    """

    name: str
    model: ModelSheet
    hardware: str
    dtype: str
    ops: str | None
    tensor_parallel: int
    probe_s: float | None
    source: str
    layouts: Mapping[str, LayoutFit]
    document: Mapping[str, Any]


def modes_of(async_scheduling: Any, capture_sizes: Any) -> dict[str, bool]:
    """`MODES` from those settings of the scheduler."""
    return dict(zip(MODES, (bool(async_scheduling), bool(capture_sizes)), strict=True))


def read_cost_file(path: str | Path) -> CostFile:
    """Read a cost file; raises InputError naming the file and the field that is wrong."""
    try:
        if Path(path).stat().st_size > LARGEST:
            raise InputError(f"has more than {LARGEST:,} bytes; expected a cost file", path=path)
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}; expected a file of batchscope calibrate", path=path
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError("is no JSON; expected a file of batchscope calibrate", path=path) from error
    return cost_file(document, str(path))


def cost_file(document: Any, name: str) -> CostFile:
    """A cost file from its JSON document; raises InputError naming the field that is wrong."""
    top = _Field(document, "", name)
    if top.value_of("format") != FORMAT:
        raise top.at("format").wrong(f"{FORMAT!r}")
    if top.value_of("version") != VERSION:
        raise top.at("version").wrong(f"{VERSION}: files of this version are read")
    layouts = top.at("layouts").items(known=LAYOUTS)
    if not layouts:
        raise top.at("layouts").wrong("at least one layout")
    source = top.at("source")
    if source.value not in ("measured", "simulated"):
        raise source.wrong("measured or simulated")
    ops, probe_s = top.at("ops"), top.at("probe_s")
    return CostFile(
        name=name,
        model=_model(top.at("model")),
        hardware=top.at("hardware").text(),
        dtype=top.at("dtype").text(),
        ops=None if ops.value is None else ops.text(),
        tensor_parallel=top.at("tensor_parallel").whole(least=1),
        probe_s=None if probe_s.value is None else probe_s.number(),
        source=str(source.value),
        layouts={layout: _layout(field) for layout, field in layouts.items()},
        document=document,
    )


def _model(field: _Field) -> ModelSheet:
    values = {name: each.value for name, each in field.items(known=[f.name for f in fields(ModelSheet)]).items()}
    for f in fields(ModelSheet):
        kind, value = str(f.type), field.at(f.name).value
        if value is None and "None" in kind:
            continue
        if kind.startswith("int"):
            field.at(f.name).whole()
        elif type(value).__name__ != kind:
            raise field.at(f.name).wrong(f"a value of type {kind}")
    return ModelSheet(**values)


def _layout(field: _Field) -> LayoutFit:
    mean, reach = field.at("mean_over_fit"), field.at("range")
    reach.at("rows")
    return LayoutFit(
        device=_terms(field.at("device"), DEVICE),
        host=_terms(field.at("host"), HOST),
        mean_over_fit=(mean.at("device").number(), mean.at("host").number()),
        reach={name: _range(each) for name, each in reach.items(known=REACH).items()},
        kinds={name: field.at("kinds").at(name).whole() for name in KINDS},
        modes={name: field.at("modes").at(name).truth() for name in MODES},
        steps=field.at("steps").whole(least=1),
    )


def _terms(field: _Field, known: tuple[str, ...]) -> Terms:
    curves = field.at("curves").items(known=known)
    return Terms(field.at("step_s").number(), {name: _curve(each, name) for name, each in curves.items()})


def _curve(field: _Field, name: str) -> Curve:
    knots = tuple(each.whole() for each in field.at("knots").each())
    slopes_s = tuple(each.number() for each in field.at("slopes_s").each())
    rising = knots[:1] == (0,) and all(a < b for a, b in pairwise(knots))
    if not rising or (len(knots) > 1 and name not in CURVED):
        raise field.at("knots").wrong("0" + (" and whole numbers that rise" if name in CURVED else " alone"))
    if len(slopes_s) != len(knots):
        raise field.at("slopes_s").wrong(f"{len(knots)} slopes, one a knot")
    return Curve(knots, slopes_s)


def _range(field: _Field) -> tuple[float, float]:
    ends = [each.number() for each in field.each()]
    if len(ends) != 2 or ends[0] > ends[1]:
        raise field.wrong("the least and the greatest value")
    return ends[0], ends[1]


@dataclass(frozen=True)
class _Field:
    """A value somewhere in the document, with its place for the sentence."""

    value: Any
    place: str
    file: str

    def at(self, name: str) -> _Field:
        """The field of that name within this object."""
        return _Field(self.value_of(name), f"{self.place}.{name}".lstrip("."), self.file)

    def value_of(self, name: str) -> Any:
        """Its value; raises where this is no object that has it."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        if name not in self.value:
            raise InputError(f"has no field {f'{self.place}.{name}'.lstrip('.')}; expected one", path=self.file)
        return self.value[name]

    def items(self, known: Any) -> dict[str, _Field]:
        """The fields of this object, each of which must be one of `known`."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        for name in self.value:
            if name not in known:
                raise InputError(f"{self.place} has {name!r}; expected {', '.join(known)}", path=self.file)
        return {name: self.at(name) for name in self.value}

    def each(self) -> list[_Field]:
        """The values of this list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [_Field(value, f"{self.place}[{at}]", self.file) for at, value in enumerate(self.value)]

    def number(self) -> float:
        """A finite number >= 0."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.wrong("a number >= 0")
        return float(value)

    def whole(self, least: int = 0) -> int:
        """A whole number >= `least`."""
        if type(self.value) is not int or self.value < least:
            raise self.wrong(f"a whole number >= {least}")
        return int(self.value)

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value

    def truth(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def wrong(self, expected: str) -> InputError:
        """The error for this value."""
        return InputError(
            f"{self.place or 'the document'} is {str(self.value)[:60]!r}; expected {expected}", path=self.file
        )
