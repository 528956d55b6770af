"""A simulated run written down as other tools write measured ones: simulating it again must give it back."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator import simulate
from simulator.measured import series_of, trace_times
from traces.trace import Trace
from traces.workload import Workload

COST = "linear:step_s=0.02,token_s=0.0001,context_s=1e-7"
SYSTEM: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": "a100-80gb", "cost": COST}
SCHEDULER: dict[str, Any] = {"max_num_seqs": 4, "num_blocks": 200, "max_num_batched_tokens": 256}
FLAGS = [
    "--model", SYSTEM["model"], "--hardware", SYSTEM["hardware"], "--cost", COST, "--max-num-seqs", "4",
    "--num-blocks", "200", "--max-num-batched-tokens", "256",
]  # fmt: skip


@cache
def workload() -> Workload:
    """Forty requests that queue for four seats."""
    draw = np.random.default_rng(3)
    arrival_s = np.round(np.cumsum(draw.exponential(0.1, 40)), 6)
    return Workload(arrival_s - arrival_s[0], draw.integers(10, 200, 40), draw.integers(1, 40, 40))


@cache
def run(concurrency: int | None = None) -> Trace:
    """The run that stands for a measured one."""
    return simulate(workload(), concurrency=concurrency, token_times=True, **SYSTEM, **SCHEDULER)


def bench(trace: Trace, **changes: Any) -> dict[str, Any]:
    """What ``vllm bench serve --save-detailed`` would have kept of it."""
    requests, times = trace.requests.sort_values("request"), trace_times(trace, planned=False)
    gaps = [np.diff(each).tolist() for each in requests["token_times_s"]]
    makespan_s = float(times.last.max())
    return {
        "date": "20260102-030405", "backend": "vllm", "model_id": "llama-3.1-8b", "num_prompts": len(requests),
        "request_rate": 10.0, "max_concurrency": None, "duration": makespan_s, "completed": len(requests),
        "total_input_tokens": int(requests["prompt_tokens"].sum()),
        "total_output_tokens": int(times.output_tokens.sum()),
        "request_throughput": len(requests) / makespan_s,
        "output_throughput": float(times.output_tokens.sum() / makespan_s),
        "input_lens": requests["prompt_tokens"].tolist(), "output_lens": times.output_tokens.tolist(),
        "ttfts": (times.first - times.arrival).tolist(), "itls": gaps,
        "start_times": (times.arrival + 5000.0).tolist(), "errors": [""] * len(requests), **changes,
    }  # fmt: skip


def guidellm(trace: Trace, **changes: Any) -> dict[str, Any]:
    """What guidellm since 0.4 would have kept of it."""
    times = trace_times(trace, planned=False)
    prompt = trace.requests.sort_values("request")["prompt_tokens"].tolist()
    start_s = 1777451316.0
    rows = [
        {
            "request_start_time": start_s + sent, "request_end_time": start_s + last, "prompt_tokens": tokens,
            "output_tokens": count, "time_to_first_token_ms": 1e3 * (first - sent),
            "inter_token_latency_ms": 1e3 * (last - first) / (count - 1) if count > 1 else None,
        }
        for sent, first, last, count, tokens in zip(
            times.arrival.tolist(), times.first.tolist(), times.last.tolist(), times.output_tokens.tolist(), prompt,
            strict=True,
        )
    ]  # fmt: skip
    benchmark = {
        "config": {"strategy": {"type_": "poisson", "rate": 10.0}, "backend": {"model": "llama-3.1-8b"}},
        "metrics": {"request_totals": {"successful": len(rows), "errored": 0, "incomplete": 0}},
        "requests": {"successful": rows, "incomplete": [], "errored": []},
        **changes,
    }
    return {"metadata": {"version": 1}, "benchmarks": [benchmark]}


def log(trace: Trace, every_s: float = 1.0) -> str:
    """What vLLM would have logged of it every second."""
    at_s = np.arange(0.0, float(trace_times(trace, planned=False).last.max()), every_s)
    state = series_of(trace, at_s, 0.0)
    lines = [
        f"(APIServer pid=158) INFO 09-02 13:{int(t // 60):02}:{int(t % 60):02} [loggers.py:123] Engine 000: Avg prompt "
        f"throughput: 0.0 tokens/s, Avg generation throughput: {rate:.1f} tokens/s, Running: {running:.0f} reqs, "
        f"Waiting: {waiting:.0f} reqs, GPU KV cache usage: {percent:.1f}%, Prefix cache hit rate: 0.0%"
        for t, rate, running, waiting, percent in zip(
            at_s, _rates(trace, at_s, every_s), state.running, state.waiting, state.kv_percent, strict=True
        )
    ]
    return "INFO:     Application startup complete.\n" + "\n".join(lines) + "\n"


def _rates(trace: Trace, at_s: npt.NDArray[np.float64], every_s: float) -> npt.NDArray[np.float64]:
    tokens = np.sort(np.concatenate(trace.requests["token_times_s"].to_list()))
    done = np.searchsorted(tokens, at_s, side="right")
    return np.diff(done, prepend=0) / every_s


BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def scrapes(trace: Trace, every_s: float = 1.0) -> str:
    """What looks at vLLM's metrics would have shown of it every second, one before it began."""
    end_s = float(trace_times(trace, planned=False).last.max())
    at_s = np.concatenate([[-1.0], np.arange(0.0, end_s + every_s, every_s)])
    state = series_of(trace, at_s, 0.0)
    parts = []
    for place, t in enumerate(at_s.tolist()):
        values = (state.running[place], state.waiting[place], state.kv_percent[place] / 100)
        parts.append(f"# scraped {1_700_000_000 + t:.3f}\n{metrics(trace, t, *map(float, values))}")
    return "".join(parts)


def metrics(trace: Trace, until_s: float, running: float, waiting: float, kv_use: float) -> str:
    """One look, `until_s` seconds after the first arrival."""
    times = trace_times(trace, planned=False)
    label = 'engine="0",model_name="llama-3.1-8b"'
    lines = [
        f"vllm:num_requests_running{{{label}}} {running}",
        f"vllm:num_requests_waiting{{{label}}} {waiting}",
        f"vllm:kv_cache_usage_perc{{{label}}} {kv_use}",
        f"vllm:generation_tokens_total{{{label}}} {float(_tokens_until(trace, until_s))}",
    ]
    started, ended = times.first <= until_s, times.last <= until_s
    lines += histogram("vllm:time_to_first_token_seconds", label, (times.first - times.arrival)[started])
    lines += histogram("vllm:e2e_request_latency_seconds", label, (times.last - times.arrival)[ended])
    lines += histogram("vllm:request_queue_time_seconds", label, (times.scheduled - times.arrival)[ended])
    return "\n".join(lines) + "\n"


def _tokens_until(trace: Trace, until_s: float) -> int:
    return int((np.concatenate(trace.requests["token_times_s"].to_list()) <= until_s).sum())


def histogram(name: str, label: str, values_s: npt.NDArray[np.float64]) -> list[str]:
    """A Prometheus histogram's lines."""
    below = [f'{name}_bucket{{{label},le="{bound}"}} {float((values_s <= bound).sum())}' for bound in BOUNDS_S]
    count = float(len(values_s))
    return [
        f"# TYPE {name} histogram", *below, f'{name}_bucket{{{label},le="+Inf"}} {count}',
        f"{name}_sum{{{label}}} {float(values_s.sum())}", f"{name}_count{{{label}}} {count}",
    ]  # fmt: skip


def write(path: Path, content: Any) -> Path:
    """A file with a text, or with a value as JSON."""
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
