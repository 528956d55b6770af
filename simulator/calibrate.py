"""Fits a cost to recorded steps: traces in, the document of a cost file out."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scheduler.errors import ConfigError, InputError
from traces.atomic import atomic_path

from .calibration_layout import enough, fit_layout, joined
from .calibration_sources import Source, check_alike, probe_mean_s, read_source
from .costs.fitted_file import FORMAT, VERSION


def calibrate(traces: Sequence[str | Path]) -> dict[str, Any]:
    """Fit a cost to the steps of one or several runs of one model on one machine.

    Where a probe ran beside the steps (`traces.probes`), each step is first brought to the machine's mean speed.

    Args:
        traces: folders of step traces, any policies and layouts.

    Returns:
        The document of a cost file (docs/cost-models.md); the same traces give the same document.

    Raises:
        InputError: a trace that is unsound, or with too few or too uniform steps.
        ConfigError: traces of different models, machines or modes of the engine.
    """
    if not traces:
        raise ConfigError("no trace to calibrate from; expected at least one")
    sources = [read_source(path) for path in traces]
    check_alike(sources)
    first = sources[0]
    layouts = sorted({source.layout for source in sources})
    probe_s = probe_mean_s(sources)
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": first.model.as_dict(),
        **first.facts,
        "async_scheduling": sorted({source.modes["async_scheduling"] for source in sources}),
        "layouts": {layout: _layout([s for s in sources if s.layout == layout], probe_s) for layout in layouts},
        "probe_s": probe_s,
        "sources": [dict(source.told) for source in sources],
        "software": {"batchscope": version("batchscope"), "python": platform.python_version(), **_fitters()},
    }


def write_cost(document: dict[str, Any], path: str | Path) -> None:
    """Write a cost file, whole or not at all; the same document gives the same bytes."""
    text = json.dumps(document, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _layout(sources: list[Source], probe_s: float | None) -> dict[str, Any]:
    steps = joined([source.steps if probe_s is None else source.at(probe_s) for source in sources])
    lacking = enough(steps)
    if lacking is not None:
        names = " and ".join(source.path for source in sources)
        raise InputError(f"the {sources[0].layout} layout {lacking}", path=names)
    return {"modes": dict(sources[0].modes), **fit_layout(steps)}


def _fitters() -> dict[str, str]:
    return {name: version(name) for name in ("numpy", "scipy")}
