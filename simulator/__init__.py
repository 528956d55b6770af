"""The simulator: SimPy processes that run a scheduler's decisions against a cost model, and experiments over them.

Public names are imported when first used: looking at a hardware sheet does not pay for pandas.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "simulate": "simulator.run",
    "compare": "simulator.experiments",
    "CostModel": "simulator.costs",
    "StepCost": "simulator.costs",
    "make_cost_model": "simulator.costs",
    "HardwareSheet": "simulator.hardware",
    "get_hardware": "simulator.hardware",
    "ModelSheet": "simulator.models",
    "get_model": "simulator.models",
    "estimate_num_blocks": "simulator.memory",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
