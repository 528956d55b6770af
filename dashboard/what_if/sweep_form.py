"""The Sweep form as a value, its address, and the run it asks for; `parse` and `write` undo each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from dashboard.scenario import Variant
from scheduler.errors import UserError
from simulator.grid import LOAD_AXES
from simulator.slo import Slo

from . import query
from .check import Fault, fault_of
from .query import Form
from .settings import settings

PATH = "/sweep"
GRIDS = 2
"""Settings that a form varies, besides rates and seeds."""
SLO_METRICS = ("ttft", "tpot", "e2e")
"""What a limit can be put on; it holds for each request (goodput) and for the p99 (the box)."""
_OWN = {"rates": "rate", "seeds": "seed"}


@dataclass(frozen=True)
class SweepForm:
    """Everything that the form says.

    Attributes:
        base: workload, system, load and the settings that are not varied; one variant.
        grids: names of settings and their values as text, as for `simulator.grid.parse_grid`.
        rates, seeds: values as text; empty: not varied.
        slo: metric -> most seconds as text (``0.5``, ``500ms``).
        latency: the figure that the front sets against throughput.
    """

    base: Form = field(default_factory=Form)
    grids: tuple[tuple[str, str], ...] = ()
    rates: str = ""
    seeds: str = ""
    slo: Mapping[str, str] = field(default_factory=dict)
    latency: str = "e2e_p99"

    def grid(self) -> dict[str, str]:
        """What is varied: name -> values as text."""
        return {name: text for name, text in (*self.grids, ("rate", self.rates), ("seed", self.seeds)) if text}

    def request(self) -> dict[str, Any]:
        """The run it asks for, as `dashboard.runs.request.RunRequest.of` takes it; what is varied is not set."""
        grid, limits = self.grid(), self.limits_s()
        asked = self.base.requests()[0]
        return {
            **{name: value for name, value in asked.items() if name not in grid},
            "kind": "sweep",
            "label": " × ".join(grid) or "sweep",
            "workload": {name: value for name, value in asked["workload"].items() if name not in grid},
            "settings": {name: value for name, value in asked["settings"].items() if name not in grid},
            "grid": grid,
            "latency": self.latency,
            **({"slo": {f"{metric}_s": limit for metric, limit in limits.items()}} if limits else {}),
        }

    def limits_s(self) -> dict[str, float]:
        """Metric -> limit in seconds, of those that are given. Raises ConfigError."""
        given = {f"{metric}_p99": text for metric, text in self.slo.items() if text.strip()}
        return {name.removesuffix("_p99"): limit for name, limit in (Slo.of(given).as_dict() if given else {}).items()}

    def fault(self) -> Fault | None:
        """The first thing that is wrong; None: nothing."""
        try:
            return fault_of(self.request())
        except UserError as error:
            return Fault(str(error))


EXAMPLE = SweepForm(
    Form({"kind": "preset", "name": "default", "requests": 150}, variants=(Variant("A"),)),
    (("max_num_seqs", "4,16,64"), ("policy", "static,chunked")),
    rates="2,4,6,8,12,16",
    slo={"ttft": "1", "tpot": "50ms"},
    latency="ttft_p99",
)
"""A small sweep that shows a front and a knee."""


def write(form: SweepForm) -> str:
    """The address of a form, from its question mark on."""
    own = {
        **{f"grid{at + 1}": f"{name}={values}" for at, (name, values) in enumerate(form.grids)},
        "rates": form.rates,
        "seeds": form.seeds,
        "latency": "" if form.latency == "e2e_p99" else form.latency,
        **{f"slo.{metric}": text for metric, text in form.slo.items()},
    }
    fields = {**query.fields_of(form.base), **{name: value for name, value in own.items() if value}}
    return "?" + urlencode(fields, safe=":,=/")


def parse(text: str | Mapping[str, Any]) -> SweepForm:
    """The form of an address. What makes no sense there is left out."""
    found = dict(parse_qsl(text.lstrip("?"))) if isinstance(text, str) else {k: str(v) for k, v in text.items()}
    grids = [found[name].partition("=") for at in range(GRIDS) if "=" in found.get(name := f"grid{at + 1}", "")]
    base = query.parse(found)
    return SweepForm(
        Form() if base is query.FIRST else replace(base, variants=base.variants[:1], scenario=""),
        tuple((name, values) for name, _, values in grids),
        found.get("rates", ""),
        found.get("seeds", ""),
        {metric: found[f"slo.{metric}"] for metric in SLO_METRICS if f"slo.{metric}" in found},
        found.get("latency", "e2e_p99"),
    )


def of_request(request: Mapping[str, Any]) -> SweepForm:
    """The form that asks for a stored sweep."""
    grid = {name: _values_text(name, values) for name, values in request["grid"].items()}
    grids = tuple((name, text) for name, text in grid.items() if name not in _OWN.values())
    return SweepForm(
        query.of_requests([{**request, "label": ""}]), grids[:GRIDS], grid.get("rate", ""), grid.get("seed", ""),
        {name.removesuffix("_s"): f"{limit:g}" for name, limit in (request.get("slo") or {}).items()},
        request.get("latency", "e2e_p99"),
    )  # fmt: skip


def point_request(request: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """The run of one point of a sweep alone, as `dashboard.runs.request.RunRequest.of` takes it."""
    load = {name: value for name, value in point.items() if name in LOAD_AXES}
    workload = {**request["workload"], **{name: load[name] for name in ("rate", "requests") if name in load}}
    own = {name: value for name, value in load.items() if name not in ("rate", "requests")}
    varied = {name: value for name, value in point.items() if name not in LOAD_AXES}
    rest = {name: request[name] for name in ("seed", "concurrency", "think_s", "skip_bad") if name in request}
    return {
        "kind": "simulate",
        "label": ", ".join(f"{name} {point_text(name, value)}" for name, value in point.items()),
        "workload": workload,
        "settings": {**request["settings"], **varied},
        **rest,
        **own,
    }


def point_text(name: str, value: Any) -> str:
    """A value of a grid as people type it."""
    known = settings()
    if value is None:
        return "none"
    return known[name].text(value) if name in known else f"{value:g}" if isinstance(value, float) else str(value)


def _values_text(name: str, values: Any) -> str:
    if isinstance(values, str):
        return values
    return ",".join(point_text(name, value) for value in (values if isinstance(values, list | tuple) else [values]))
