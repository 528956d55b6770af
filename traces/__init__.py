"""Remembers: request workloads in, step traces out. The names below are loaded when they are asked for."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Trace": "trace",
    "TraceRecorder": "recorder",
    "Workload": "workload",
    "read_workload": "formats",
    "resolve_workload": "presets",
}
__all__ = ["Trace", "TraceRecorder", "Workload", "read_workload", "resolve_workload"]


def __getattr__(name: str) -> Any:
    """A public name from the file that holds it, so that importing one costs only what it needs."""
    if name not in __all__:
        raise AttributeError(f"module 'traces' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
