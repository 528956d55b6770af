"""The room that executes: the scheduler's plans on real models, measured, recorded and served over HTTP.

`Engine`, `SamplingParams` and `RequestOutput` are loaded when first asked for: importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine
    from .outputs import RequestOutput, TokenOutput
    from .sampling import SamplingParams

_HOMES = {
    "Engine": "engine",
    "SamplingParams": "sampling",
    "RequestOutput": "outputs",
    "TokenOutput": "outputs",
}
__all__ = ["Engine", "RequestOutput", "SamplingParams", "TokenOutput"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
