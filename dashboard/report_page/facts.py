"""What a run was, as pairs of words: policy, model, hardware, cost model, requests, versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.data.run import Run
from dashboard.parts.summary import STATUS, beyond_data
from traces.record import caveat_of

DIGEST = 16
"""Characters of a workload's digest that are shown: enough to tell two apart."""


def facts(run: Run) -> list[tuple[str, str]]:
    """What and its value; what a trace does not say is left out."""
    meta = run.meta
    told = [
        ("Status", STATUS.get(run.status, run.status)),
        ("Policy", _joined(meta.get("policy"), meta.get("layout"))),
        ("Model", _name(meta.get("model"))),
        ("Hardware", _hardware(meta)),
        ("Cost model", _with_options(meta.get("cost_model"))),
        ("Scheduler", _scheduler(run)),
        ("Requests", _requests(meta.get("workload"))),
        ("Load", _load(meta.get("load"))),
        ("Seed", _text(meta.get("seed"))),
        ("Caveat", _text(caveat_of(meta.get("cost_model")))),
        ("Extrapolation", beyond_data(meta.get("extrapolation"))),
        ("Padding's time", _text(meta.get("padding_s"))),
        ("Versions", _listed(meta.get("software"))),
    ]
    return [(name, value) for name, value in told if value]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _joined(*values: Any) -> str:
    return ", ".join(str(value) for value in values if value)


def _name(value: Any) -> str:
    return _text(value.get("name")) if isinstance(value, Mapping) else _text(value)


def _hardware(meta: Mapping[str, Any]) -> str:
    gpus = meta.get("tensor_parallel")
    name = _name(meta.get("hardware"))
    return f"{gpus} × {name}" if isinstance(gpus, int) and gpus > 1 and name else name


def _with_options(value: Any) -> str:
    options = _listed(value.get("options")) if isinstance(value, Mapping) else ""
    return _name(value) + (f" ({options})" if options else "")


def _listed(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    return ", ".join(f"{name} {item}" for name, item in value.items() if not isinstance(item, dict | list))


def _scheduler(run: Run) -> str:
    config = run.meta.get("config")
    known = config if isinstance(config, Mapping) else {}
    parts = [f"{run.slots_total:,} slots"]
    for name, unit in (("max_num_batched_tokens", "tokens a step at most"), ("num_blocks", "KV blocks")):
        if isinstance(known.get(name), int):
            parts.append(f"{known[name]:,} {unit}")
    if isinstance(known.get("block_size"), int):
        parts.append(f"{known['block_size']} tokens a block")
    return ", ".join(parts)


def _requests(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    count = value.get("requests")
    digest = _text(value.get("digest"))[:DIGEST]
    number = f"{count:,} of " if isinstance(count, int) else ""
    return number + _text(value.get("name")) + (f", digest {digest}…" if digest else "")


def _load(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    clients = value.get("concurrency")
    return (
        "requests come at their own times"
        if clients is None
        else f"{clients} clients, each waits for its answer before it asks again"
    )
