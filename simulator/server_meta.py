"""The description that a served vLLM run leaves beside its recording: `meta.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.errors import InputError


def read_server(path: Path) -> dict[str, Any]:
    """The description, a JSON object; raises InputError."""
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except ValueError as error:
        raise InputError("is not JSON; expected the description of a served run", path=path) from error
    if not isinstance(meta, dict):
        raise InputError("is no JSON object; expected the description of a served run", path=path)
    return meta


def entry(meta: Mapping[str, Any], *names: str) -> Any:
    """What stands under a path of names; None where one is missing."""
    found: Any = meta
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def needed(meta: Mapping[str, Any], path: Path, *names: str) -> Any:
    """The same; raises InputError where one is missing."""
    found = entry(meta, *names)
    if found is None:
        raise InputError(f"has no field {'.'.join(names)}; expected the description of a served run", path=path)
    return found


def whole(meta: Mapping[str, Any], path: Path, *names: str) -> int:
    """A whole number under a path of names; raises InputError."""
    found = needed(meta, path, *names)
    if isinstance(found, bool) or not isinstance(found, int):
        raise InputError(f"{'.'.join(names)} is {found!r}; expected a whole number", path=path)
    return found


def captured_sizes(meta: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    """Row counts for which graphs were captured; none where the engine ran eagerly or does not say."""
    if entry(meta, "resolved_config", "model_config", "enforce_eager"):
        return ()
    sizes = entry(meta, "resolved_config", "compilation_config", "cudagraph_capture_sizes") or ()
    if not isinstance(sizes, list | tuple) or not all(isinstance(size, int) for size in sizes):
        raise InputError(f"cudagraph_capture_sizes is {sizes!r}; expected whole numbers", path=path)
    return tuple(sorted(sizes))
