"""`GET /metrics`: Prometheus text under vLLM's names, and our own for padding and slots."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.responses import Response

from scheduler.plan import FACTS, PADDING_CAUSES, WAIT_REASONS
from scheduler.request import FinishReason

from .histogram import FIRST_TOKEN_S, REQUEST_S, STEP_S, STEP_TOKENS, TOKEN_S, Histogram, token_counts

if TYPE_CHECKING:
    from backend.engine import Engine
    from backend.outputs import FinishedRequest, StepEvent
    from scheduler.plan import StepPlan

router = APIRouter()

COUNTERS = {
    "vllm:num_preemptions": "Requests that lost their seat",
    "vllm:prompt_tokens": "Prompt tokens computed or found in the prefix cache",
    "vllm:generation_tokens": "Output tokens sampled and kept",
    "vllm:prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
    "vllm:prefix_cache_hits": "Prompt tokens found in the prefix cache",
    "batchscope:steps": "Steps run",
    "batchscope:computed_tokens": "Rows run through the dense layers, padding included",
    "batchscope:recomputed_tokens": "Tokens computed again after a preemption",
    "batchscope:padding_context_tokens": "KV positions read for padding only (no rows)",
    "batchscope:padding_seconds": "Device time spent on padding, seconds",
    "batchscope:device_seconds": "Device time of all steps, seconds",
    "batchscope:host_seconds": "Host time of all steps, seconds",
}
HISTOGRAMS = {
    "vllm:iteration_tokens_total": ("Tokens scheduled in a step", STEP_TOKENS),
    "vllm:time_to_first_token_seconds": ("From arrival to the first token delivered", FIRST_TOKEN_S),
    "vllm:inter_token_latency_seconds": ("Between two tokens delivered to a request", TOKEN_S),
    "vllm:request_time_per_output_token_seconds": ("A request's mean time between tokens", TOKEN_S),
    "vllm:e2e_request_latency_seconds": ("From arrival to end", REQUEST_S),
    "vllm:request_queue_time_seconds": ("From arrival to the first seat", REQUEST_S),
    "vllm:request_prefill_time_seconds": ("From the first seat to the first token", REQUEST_S),
    "vllm:request_decode_time_seconds": ("From the first token to the last", REQUEST_S),
    "vllm:request_inference_time_seconds": ("From the first seat to the last token", REQUEST_S),
    "batchscope:step_device_seconds": ("Device time of a step", STEP_S),
    "batchscope:step_host_seconds": ("Host time of a step", STEP_S),
}
"""Name -> (help, bounds); the token counts of requests, whose bounds depend on the model, come on top."""
BY_REQUEST_TOKENS = {
    "vllm:request_prompt_tokens": "Prompt tokens of a request",
    "vllm:request_generation_tokens": "Output tokens of a request",
    "vllm:request_params_max_tokens": "Output tokens a request may have",
}
_READ = (
    "prefill_tokens", "decode_tokens", "recomputed_tokens", "cached_tokens", "computed_tokens", "padding_context",
    "sampled", "wait_reason", "padding_prompt", "padding_finished", "padding_graph", "padding_overrun",
)  # fmt: skip
_facts = itemgetter(*(FACTS.index(name) for name in _READ))


class EngineMetrics(Collector):
    """Adds up what steps report, and gives it to Prometheus when asked.

    Plain numbers under a lock, because `observe` runs in the engine's thread: prometheus_client's own histograms would
    take two microseconds a value.

    Args:
        engine: watched from now on.
        model_name: the label that vLLM puts on everything.
    """

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._labels = {"model_name": model_name, "engine": "0"}
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)
        self._padding = [0] * len(PADDING_CAUSES)
        self._waits = [0] * len(WAIT_REASONS)
        self._ends = dict.fromkeys([reason.value for reason in FinishReason], 0)
        bounds = token_counts(engine.config.max_model_len)
        self._help = {**{name: text for name, (text, _) in HISTOGRAMS.items()}, **BY_REQUEST_TOKENS}
        self._histograms = {name: Histogram(each) for name, (_, each) in HISTOGRAMS.items()}
        self._histograms.update({name: Histogram(bounds) for name in BY_REQUEST_TOKENS})
        engine.observe(self.observe)

    def observe(self, event: StepEvent) -> None:
        """Take in a step; called in the engine's thread."""
        with self._lock:
            if event.plan is not None:
                self._add_step(event, event.plan)
            histograms = self._histograms
            histograms["vllm:time_to_first_token_seconds"].add_all(event.first_tokens_s)
            histograms["vllm:inter_token_latency_seconds"].add_all(event.gaps_s)
            for finished in event.finished:
                self._add_finished(finished)

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        with self._lock:
            yield from [*self._counters(), *self._histogram_families()]
        yield from self._gauges()

    def _add_step(self, event: StepEvent, plan: StepPlan) -> None:
        prefill, decode, again, cached, computed, context, sampled, wait, *padding = _facts(plan.facts)
        counts = self._counts
        counts["batchscope:steps"] += 1
        counts["vllm:num_preemptions"] += len(plan.preempted)
        counts["vllm:prompt_tokens"] += prefill + cached
        counts["vllm:generation_tokens"] += sampled
        counts["vllm:prefix_cache_queries"] += event.prefix_queries
        counts["vllm:prefix_cache_hits"] += event.prefix_hits
        counts["batchscope:computed_tokens"] += computed
        counts["batchscope:recomputed_tokens"] += again
        counts["batchscope:padding_context_tokens"] += context
        counts["batchscope:padding_seconds"] += event.padding_s
        counts["batchscope:device_seconds"] += event.device_s
        counts["batchscope:host_seconds"] += event.host_s
        self._padding = [so_far + rows for so_far, rows in zip(self._padding, padding, strict=True)]
        self._waits[wait] += 1
        self._histograms["vllm:iteration_tokens_total"].add(prefill + decode + again)
        self._histograms["batchscope:step_device_seconds"].add(event.device_s)
        self._histograms["batchscope:step_host_seconds"].add(event.host_s)

    def _add_finished(self, end: FinishedRequest) -> None:
        self._ends[end.finish_reason] += 1
        self._add("vllm:request_prompt_tokens", end.num_prompt_tokens)
        self._add("vllm:request_generation_tokens", end.num_output_tokens)
        self._add("vllm:request_params_max_tokens", end.max_tokens)
        self._add("vllm:e2e_request_latency_seconds", end.finished_s - end.arrival_s)
        self._add("vllm:request_queue_time_seconds", _between(end.arrival_s, end.scheduled_s))
        self._add("vllm:request_prefill_time_seconds", _between(end.scheduled_s, end.first_token_s))
        self._add("vllm:request_inference_time_seconds", _between(end.scheduled_s, end.last_token_s))
        decode_s = _between(end.first_token_s, end.last_token_s)
        self._add("vllm:request_decode_time_seconds", decode_s)
        if decode_s is not None and end.num_output_tokens > 1 and decode_s > 0:
            self._add("vllm:request_time_per_output_token_seconds", decode_s / (end.num_output_tokens - 1))

    def _add(self, name: str, value: float | None) -> None:
        if value is not None:
            self._histograms[name].add(value)

    def _counters(self) -> Iterator[Metric]:
        for name, text in COUNTERS.items():
            yield self._family(CounterMetricFamily, name, text, {(): self._counts[name]})
        yield self._family(
            CounterMetricFamily, "vllm:request_success", "Requests that ended, by reason",
            {(("finished_reason", reason),): count for reason, count in self._ends.items()},
        )  # fmt: skip
        yield self._family(
            CounterMetricFamily, "batchscope:padding_tokens", "Padded rows, by cause",
            {(("cause", cause),): count for cause, count in zip(PADDING_CAUSES, self._padding, strict=True)},
        )  # fmt: skip
        yield self._family(
            CounterMetricFamily, "batchscope:wait_steps", "Steps, by why the head of the queue had to wait",
            {(("reason", reason),): count for reason, count in zip(WAIT_REASONS, self._waits, strict=True)},
        )  # fmt: skip

    def _histogram_families(self) -> Iterator[Metric]:
        for name, histogram in self._histograms.items():
            family = HistogramMetricFamily(name, self._help[name], labels=[*self._labels])
            family.add_metric([*self._labels.values()], histogram.cumulative(), histogram.total)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for name, text, value in (
            ("vllm:num_requests_running", "Requests in seats", stats.running),
            ("vllm:num_requests_waiting", "Requests that wait", self._engine.num_waiting),
            ("vllm:kv_cache_usage_perc", "KV blocks in use, 1 is all", stats.blocks_used / stats.blocks_total),
            ("batchscope:slots_busy", "Seats taken, by ended rows of a batch too", stats.slots_busy),
            ("batchscope:slots_total", "Seats", stats.slots_total),
            ("batchscope:kv_blocks_cached", "KV blocks kept for prefix hits only", stats.blocks_cached),
        ):
            yield self._family(GaugeMetricFamily, name, text, {(): value})
        yield self._family(GaugeMetricFamily, "vllm:cache_config_info", "KV cache settings", {self._cache_facts(): 1})

    def _cache_facts(self) -> tuple[tuple[str, str], ...]:
        config = self._engine.config
        return (
            ("block_size", str(config.block_size)),
            ("enable_prefix_caching", str(config.enable_prefix_caching)),
            ("num_gpu_blocks", str(config.num_blocks)),
        )

    def _family(self, kind: Any, name: str, text: str, values: Mapping[tuple[tuple[str, str], ...], float]) -> Metric:
        """One metric with the common labels, and a sample for each set of further ones."""
        further = [label for label, _ in next(iter(values))]
        family: Metric = kind(name, text, labels=[*self._labels, *further])
        for labels, value in values.items():
            family.add_metric([*self._labels.values(), *(each for _, each in labels)], value)  # type: ignore[attr-defined]  # Metric's subclasses all have it
        return family


def registry_of(metrics: EngineMetrics) -> CollectorRegistry:
    """A registry of the app's own: the engine's metrics and the process's (memory, CPU, files)."""
    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    return registry


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text (OpenMetrics where asked for)."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(request.app.state.registry), headers={"content-type": content_type})


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
