"""Under which names servers tell what in their `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LATENCIES = {
    "ttft": "TTFT (from arrival to the first token)",
    "itl": "ITL (between two tokens of a request)",
    "tpot": "TPOT (a request's mean time between tokens)",
    "e2e": "E2E (from arrival to the last token)",
}
"""Latency histograms, by what we call them."""


@dataclass(frozen=True)
class Dialect:
    """How one kind of server names things. Of several names for one thing the first that is there counts.

    Attributes:
        server: what people call it.
        prefix: of its names.
        gauges: `running`, `waiting`, `kv_use` (a fraction), `generation_per_s`, `slots_busy`, `slots_total`.
        counters: `preemptions`, `prompt_tokens`, `generation_tokens`.
        histograms: `iteration_tokens`, `queue`, and the keys of `LATENCIES`.
    """

    server: str
    prefix: str
    gauges: Mapping[str, tuple[str, ...]]
    counters: Mapping[str, tuple[str, ...]]
    histograms: Mapping[str, tuple[str, ...]]


# vLLM: vllm/v1/metrics/loggers.py (V1; `gpu_cache_usage_perc` and `time_per_output_token_seconds` until 0.10) and
# vllm/engine/metrics.py (V0), in github.com/vllm-project/vllm. Its `time_per_output_token_seconds` is the time between
# two tokens, so an ITL.
VLLM = Dialect(
    "vLLM",
    "vllm:",
    gauges={
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    },
    counters={
        "preemptions": ("vllm:num_preemptions_total",),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
    },
    histograms={
        "iteration_tokens": ("vllm:iteration_tokens_total",),
        "ttft": ("vllm:time_to_first_token_seconds",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot": ("vllm:request_time_per_output_token_seconds",),
        "e2e": ("vllm:e2e_request_latency_seconds",),
        "queue": ("vllm:request_queue_time_seconds",),
    },
)
# Our own server speaks vLLM's names and adds some: backend/server/metrics.py.
BATCHSCOPE = Dialect(
    "batchscope",
    "batchscope:",
    gauges={
        **VLLM.gauges,
        "slots_busy": ("batchscope:slots_busy",),
        "slots_total": ("batchscope:slots_total",),
    },
    counters=VLLM.counters,
    histograms=VLLM.histograms,
)
# SGLang: python/sglang/srt/metrics/collector.py in github.com/sgl-project/sglang. It adds a request's tokens to its
# counters when the request ends, so its own gauge says more of the rate. Old ones tell a request's mean time between
# tokens, new ones the time between two.
SGLANG = Dialect(
    "SGLang",
    "sglang:",
    gauges={
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_use": ("sglang:token_usage",),
        "generation_per_s": ("sglang:gen_throughput",),
    },
    counters={
        "preemptions": ("sglang:num_retracted_requests_total",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
    },
    histograms={
        "ttft": ("sglang:time_to_first_token_seconds",),
        "itl": ("sglang:inter_token_latency_seconds",),
        "tpot": ("sglang:time_per_output_token_seconds",),
        "e2e": ("sglang:e2e_request_latency_seconds",),
    },
)
DIALECTS = (BATCHSCOPE, VLLM, SGLANG)
"""Ours first: it also has vLLM's names."""
