"""The cost model that prices a run's steps: the run's own, or for a measured run the roofline of its hardware."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dashboard.data.run import Run
from scheduler.errors import UserError
from simulator.bounds import roofs
from simulator.costs import CostModel, cost_model_names, make_cost_model
from simulator.costs.roofline import RooflineCost
from simulator.hardware import HARDWARE, Efficiency, HardwareSheet
from simulator.models import ModelSheet
from simulator.recorded_model import recorded_model

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
CPU = "cpu"
_TOLD = ("source", "cost_model", "hardware", "dtype", "model", "architecture")
"""Keys of a meta that pricing looks at."""


@dataclass(frozen=True)
class Pricing:
    """What prices a run.

    Attributes:
        model: None where there is none.
        label: what it is, a few words; without a model, why there is none.
        roofs: with a roofline, the same without arithmetic and without memory traffic; else empty.
    """

    model: CostModel | None
    label: str
    roofs: tuple[CostModel, ...] = ()


def pricing_of(run: Run) -> Pricing:
    """What prices a run's steps; never reads a file or imports code that its meta names."""
    told = {name: run.meta.get(name) for name in _TOLD}
    try:
        return _pricing(json.dumps(told))
    except (UserError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
        return Pricing(None, "its cost model cannot be built again from its meta")  # a meta may hold anything


@lru_cache(maxsize=16)
def _pricing(told: str) -> Pricing:
    """Kept, because models remember what they priced."""
    meta = json.loads(told)
    found = _simulated(meta) if meta["source"] == "simulated" else _measured(meta)
    return replace(found, roofs=roofs(found.model)) if isinstance(found.model, RooflineCost) else found


def _simulated(meta: Mapping[str, Any]) -> Pricing:
    told = meta["cost_model"]
    name = told["name"]
    if name == "recorded":
        return Pricing(None, "its durations are those of a recording")
    if name == "profile":
        return Pricing(None, "its operator tables are not part of the trace")
    if name not in cost_model_names():  # `module:Class` would import what a stranger's trace names
        return Pricing(None, "its cost model is not one of the installed ones")
    hardware = None if told["hardware"] is None else _hardware(told["hardware"])
    model = None if told["model"] is None else ModelSheet(**told["model"])
    options = {**told["options"], "fit": told["fit"]} if name == "fitted" else told["options"]
    built = make_cost_model(name, model=model, hardware=hardware, tensor_parallel=told["tensor_parallel"], **options)
    return Pricing(built, name if hardware is None or name != "roofline" else f"roofline of {hardware.name}")


def _measured(meta: Mapping[str, Any]) -> Pricing:
    sheet, width = sheet_named_in(str(meta["hardware"])), DTYPES[meta["dtype"]]
    if sheet is None:
        return Pricing(None, "no hardware sheet fits this device")
    if width == "fp32" and sheet.name != CPU:
        return Pricing(None, f"the sheet of {sheet.name} has no rate for float32")
    model = recorded_model(meta)
    built = make_cost_model("roofline", model=model, hardware=sheet, weight_dtype=width, kv_dtype=width)
    return Pricing(built, f"roofline of {sheet.name}")


def sheet_named_in(device: str) -> HardwareSheet | None:
    """The sheet all parts of whose name stand in a device's name (``NVIDIA A100-SXM4-80GB``: `a100-80gb`), or None."""
    words = set(re.findall(r"[a-z0-9]+", device.lower()))
    fitting = [name for name in HARDWARE if set(name.split("-")) <= words]
    return HARDWARE[max(fitting, key=len)] if fitting else None


def _hardware(told: Mapping[str, Any]) -> HardwareSheet:
    return HardwareSheet(**{**told, "efficiency": Efficiency(**told["efficiency"])})
