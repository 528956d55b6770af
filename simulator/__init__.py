"""The simulator: SimPy processes that run a scheduler's decisions against a cost model, and experiments over them.

Public names are imported when first used: looking at a hardware sheet does not pay for pandas.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calibrate import calibrate as calibrate
    from .capacity import capacity as capacity
    from .compare import compare as compare
    from .explain import explain as explain
    from .run import simulate as simulate
    from .sweep import sweep as sweep

_PUBLIC = {
    "simulate": "simulator.run",
    "compare": "simulator.compare",
    "sweep": "simulator.sweep",
    "capacity": "simulator.capacity",
    "explain": "simulator.explain",
    "calibrate": "simulator.calibrate",
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


class _Room(ModuleType):
    """Importing the module `simulator.compare` must not hide the function of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Room
