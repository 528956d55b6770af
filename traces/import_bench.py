"""Results of ``vllm bench serve --save-result``, with ``--save-detailed`` request by request.

Fields are those of ``vllm/benchmarks/serve.py`` (``benchmark``, ``main``) in github.com/vllm-project/vllm: seconds in
lists, milliseconds in figures (``mean_ttft_ms``, ``median_``, ``p99_``; ``e2el`` is E2E). Its TPOT is ours: (latency -
TTFT) / (tokens - 1) of requests with two tokens or more. Older versions keep no ``start_times``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.errors import InputError

from .client_run import ClientRequests, ClientRun, Floats, in_order, number, numbers, same_length

TOOL = "vllm bench"
MARKS = ("request_throughput", "total_input_tokens")
"""Fields by which a result is known."""
_LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}
_FIGURE = re.compile(rf"(mean|median|p\d+)_({'|'.join(_LATENCIES)})_ms")
_TOTALS = {
    "duration": "makespan_s",
    "output_throughput": "output_tokens_per_s",
    "request_throughput": "requests_per_s",
}
_LISTS = ("input_lens", "output_lens", "ttfts", "itls")


def read_bench(result: Mapping[str, Any], path: Path) -> ClientRun:
    """A result, as JSON holds it. Raises InputError, naming the field, for one that cannot be."""
    detailed = all(name in result for name in _LISTS)
    requests, failed = _requests(result, path) if detailed else (None, int(number(result.get("failed")) or 0))
    clients = _clients(result, path)
    notes = [f"{failed:,} requests failed; they are left out, but took some of the server's time"] if failed else []
    if clients is None and result.get("max_concurrency") is not None:
        notes.append(
            f"at most {result['max_concurrency']} requests were under way at once: that is not simulated, requests "
            "come when the client sent them"
        )
    return ClientRun(
        path=path,
        tool=TOOL,
        model=result.get("model_id") if isinstance(result.get("model_id"), str) else None,
        requests=requests,
        clients=clients,
        figures={} if requests is not None else _figures(result),
        totals={ours: value for theirs, ours in _TOTALS.items() if (value := number(result.get(theirs)))},
        notes=tuple(notes),
        why_no_arrivals=_why_no_arrivals(result, requests, clients),
    )


def _requests(result: Mapping[str, Any], path: Path) -> tuple[ClientRequests, int]:
    """The requests that were answered, and how many were not."""
    prompt, output, ttft_s = (numbers(result[name], name, path) for name in _LISTS[:3])
    gaps = result["itls"] if isinstance(result["itls"], list) else [result["itls"]]
    gaps_s = [numbers(each, f"itls[{place}]", path) for place, each in enumerate(gaps)]
    sent_s = numbers(result["start_times"], "start_times", path, least=-math.inf) if "start_times" in result else None
    columns: dict[str, Sequence[Any] | Floats] = dict(zip(_LISTS, (prompt, output, ttft_s, gaps_s), strict=True))
    same_length({**columns, **({} if sent_s is None else {"start_times": sent_s})}, path)
    good = (output >= 1) & (prompt >= 1) & ~np.array(_failed(result, len(output)), dtype=bool)
    if not good.any():
        raise InputError("no request was answered; expected a run of at least one", path=path)
    e2e_s = ttft_s + np.array([each.sum() for each in gaps_s])
    kept = [each for each, is_good in zip(gaps_s, good.tolist(), strict=True) if is_good]
    requests = in_order(
        None if sent_s is None else sent_s[good], prompt[good].astype(np.int64), output[good].astype(np.int64),
        ttft_s[good], e2e_s[good], np.concatenate(kept),
    )  # fmt: skip
    return requests, int((~good).sum())


def _failed(result: Mapping[str, Any], count: int) -> list[bool]:
    errors = result.get("errors")
    return [bool(error) for error in errors] if isinstance(errors, list) and len(errors) == count else [False] * count


def _clients(result: Mapping[str, Any], path: Path) -> int | None:
    """A cap on what is under way makes clients that wait only where nothing else sets the pace."""
    cap = result.get("max_concurrency")
    if cap is None or not _unpaced(result):
        return None
    if isinstance(cap, bool) or not isinstance(cap, int) or cap < 1:
        raise InputError(f"max_concurrency is {cap!r}; expected a whole number >= 1", path=path)
    return cap


def _unpaced(result: Mapping[str, Any]) -> bool:
    """``--request-rate inf``: nothing waits for the clock."""
    return result.get("request_rate") in ("inf", math.inf) and "ramp_up_strategy" not in result


def _why_no_arrivals(result: Mapping[str, Any], requests: ClientRequests | None, clients: int | None) -> str:
    if requests is None:
        return "is a summary without single requests; expected a run with --save-detailed"
    if requests.sent_s is None and clients is None and not _unpaced(result):
        return (
            "does not tell when requests were sent (no start_times: an older vLLM) and they came at a rate; "
            "expected a result of a newer vllm bench"
        )
    return ""


def _figures(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, value in result.items():
        match, value_ms = _FIGURE.fullmatch(name), number(value)
        if match and value_ms is not None:
            figure = "p50" if match[1] == "median" else match[1]
            found.setdefault(_LATENCIES[match[2]], {})[figure] = value_ms / 1e3
    return found
