"""Results of ``guidellm benchmark --outputs json`` (``benchmarks.json``).

Fields are those of github.com/vllm-project/guidellm. Since 0.4 (``src/guidellm/schemas/request_stats.py``) a request
has ``request_start_time``, ``time_to_first_token_ms`` and ``inter_token_latency_ms``, its mean time between tokens;
before (``src/guidellm/benchmark/benchmark.py``) ``start_time``, ``first_token_time`` and
``last_token_time``. The benchmark's strategy stands in ``config`` (before 0.4 in ``args``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.errors import InputError

from .client_run import ClientRequests, ClientRun, in_order, number

TOOL = "guidellm"
_LATENCIES = {"ttft_s": ("time_to_first_token_ms", 1e3), "e2e_s": ("request_latency", 1.0)}
"""Ours -> theirs and its units a second. Its distributions of time per token are weighted otherwise than ours."""
_PERCENTILES = ("p50", "p90", "p95", "p99")


def read_guidellm(benchmark: Mapping[str, Any], path: Path) -> ClientRun:
    """One entry of ``benchmarks``, as JSON holds it. Raises InputError, naming the field, for one that cannot be."""
    rows = _list(benchmark, "successful")
    total = _total(benchmark, "successful") or len(rows)
    whole = len(rows) == total and total > 0
    lost = sum(_total(benchmark, kind) or len(_list(benchmark, kind)) for kind in ("incomplete", "errored"))
    requests = _requests(rows, path) if whole else None
    return ClientRun(
        path=path,
        tool=TOOL,
        model=_model(benchmark),
        requests=requests,
        clients=_clients(benchmark),
        figures={} if whole else _figures(benchmark),
        totals=_rates(benchmark, requests),
        notes=tuple(_notes(benchmark, lost)),
        why_no_arrivals="" if whole else f"keeps {len(rows):,} of {total:,} requests; expected all of them "
        "(guidellm without --sample-requests)",
    )  # fmt: skip


def _list(benchmark: Mapping[str, Any], kind: str) -> list[Any]:
    requests = benchmark.get("requests")
    rows = requests.get(kind) if isinstance(requests, dict) else None
    return rows if isinstance(rows, list) else []


def _total(benchmark: Mapping[str, Any], kind: str) -> int | None:
    """Requests of a kind that there were, kept or not."""
    for counts in (_at(benchmark, "metrics", "request_totals"), benchmark.get("total_count")):
        value = number(counts.get(kind)) if isinstance(counts, dict) else None
        if value is not None:
            return int(value)
    return None


def _at(tree: Any, *names: str) -> Any:
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _requests(rows: list[Any], path: Path) -> ClientRequests:
    table = np.array([_row(row, path, place) for place, row in enumerate(rows)], dtype=np.float64)
    sent_s, first_s, last_s, prompt, output = table.T
    counts = (prompt.astype(np.int64), output.astype(np.int64))
    return in_order(sent_s, *counts, first_s - sent_s, last_s - sent_s, None)


def _row(row: Any, path: Path, place: int) -> tuple[float, float, float, float, float]:
    """Sent, first token, last token (seconds of one clock), prompt tokens, output tokens."""
    where = f"requests.successful[{place}]"
    prompt, output = (_needed(row, path, where, name) for name in ("prompt_tokens", "output_tokens"))
    if prompt < 1 or output < 1:
        raise InputError(f"{where} has {prompt:g} prompt and {output:g} output tokens; expected some", path=path)
    sent_s = _needed(row, path, where, "request_start_time", "start_time")
    if number(_at(row, "first_token_time")) is not None:
        first_s = _needed(row, path, where, "first_token_time")
        last_s = _needed(row, path, where, "last_token_time")
    else:
        first_s = sent_s + _needed(row, path, where, "time_to_first_token_ms") / 1e3
        apart_s = _needed(row, path, where, "inter_token_latency_ms") / 1e3 if output > 1 else 0.0
        last_s = first_s + apart_s * (output - 1)
    if not sent_s <= first_s <= last_s:
        raise InputError(f"{where}: its times go backwards; expected sent, first and last token in order", path=path)
    return sent_s, first_s, last_s, prompt, output


def _needed(row: Any, path: Path, where: str, *names: str) -> float:
    for name in names:
        value = number(_at(row, name))
        if value is not None:
            return value
    raise InputError(f"{where} has no number {' or '.join(names)}; expected one", path=path)


def _strategy(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    for place in ("config", "args"):
        found = _at(benchmark, place, "strategy")
        if isinstance(found, dict):
            return found
    return {}


def _clients(benchmark: Mapping[str, Any]) -> int | None:
    strategy = _strategy(benchmark)
    kind, streams = strategy.get("type_"), strategy.get("streams")
    if kind == "synchronous":
        return 1
    steady = kind == "concurrent" and not strategy.get("rampup_duration")
    return streams if steady and isinstance(streams, int) and streams >= 1 else None


def _model(benchmark: Mapping[str, Any]) -> str | None:
    for place in (("config", "backend", "model"), ("worker", "backend_model")):
        found = _at(benchmark, *place)
        if isinstance(found, str):
            return found
    return None


def _figures(benchmark: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for ours, (theirs, unit) in _LATENCIES.items():
        spread = _at(benchmark, "metrics", theirs, "successful")
        values = {"mean": _at(spread, "mean")} | {name: _at(spread, "percentiles", name) for name in _PERCENTILES}
        known = {name: value / unit for name, each in values.items() if (value := number(each)) is not None}
        if known:
            found[ours] = known
    return found


def _rates(benchmark: Mapping[str, Any], requests: ClientRequests | None) -> dict[str, float]:
    if requests is not None:
        return {}  # the requests themselves tell
    duration_s, served = number(benchmark.get("duration")), _total(benchmark, "successful")
    return {"requests_per_s": served / duration_s} if duration_s and served else {}


def _notes(benchmark: Mapping[str, Any], lost: int) -> list[str]:
    notes = []
    if lost:
        notes.append(f"{lost:,} requests failed or were cut off; they are left out, but took some of the server's time")
    if any(number(benchmark.get(name)) for name in ("warmup_duration", "cooldown_duration")):
        notes.append("requests of the warm-up and the cool-down may be missing, so the server was busier than told")
    return notes
