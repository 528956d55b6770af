"""How many KV blocks an engine gets, and the longest sequence it takes, where nobody says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError
from scheduler.policies import find_policy

from .kv_cache import KvCache
from .model_config import ModelConfig

CPU_KV_GIB = 1.0
"""On the CPU, where there is no card to fill: enough for the models one runs there, harmless on a laptop."""
MOST_POSITIONS = 8192
"""Longest sequence unless `max_model_len` says more: a table of ``slots x positions`` tokens is kept."""
GIB = 1 << 30


def scheduler_config(
    model: ModelConfig, settings: Mapping[str, Any], *, dtype: torch.dtype, device: torch.device,
    kv_cache_gib: float | None, gpu_memory_utilization: float,
) -> SchedulerConfig:  # fmt: skip
    """The scheduler's settings for a model, with what was not given worked out; raises ConfigError."""
    given = {
        "max_model_len": min(model.max_positions, MOST_POSITIONS),
        "eos_token_ids": model.eos_token_ids,
        **settings,
    }
    if given["max_model_len"] > model.max_positions:
        raise ConfigError(
            f"max_model_len is {given['max_model_len']}; expected at most the model's {model.max_positions} positions"
        )
    if device.type == "cuda" and "cudagraph_capture_sizes" not in given and not _is_padded(given):
        given["cudagraph_capture_sizes"] = capture_sizes(SchedulerConfig(**_only(given, "max_num_seqs")).max_num_seqs)
    if "num_blocks" not in given:
        block_size = SchedulerConfig(**_only(given, "block_size")).block_size
        gib = kv_gib(kv_cache_gib, device, gpu_memory_utilization)
        given["num_blocks"] = _blocks(model, gib, block_size, dtype)
    return SchedulerConfig(**given)


def capture_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Rows of the decode steps to record as CUDA graphs: 1, 2, 4, then every 8 (vLLM's sizes), up to the slots."""
    sizes = [1, 2, 4, *range(8, max_num_seqs + 8, 8)]
    return tuple(size for size in sizes if size < max_num_seqs + 8)


def _is_padded(settings: Mapping[str, Any]) -> bool:
    """Whether steps will be rectangles, for which no graphs are recorded."""
    config = SchedulerConfig(**_only(settings, "policy"), **_only(settings, "layout"))
    return (find_policy(config.policy).layout if config.layout == "auto" else config.layout) == "padded"


def _only(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """That setting alone, to be checked before the others are known."""
    return {name: settings[name]} if name in settings else {}


def kv_gib(kv_cache_gib: float | None, device: torch.device, gpu_memory_utilization: float) -> float:
    """GiB for the KV cache: as told, else what a card has left below its share (weights are loaded by then)."""
    if kv_cache_gib is not None:
        if not 0 < kv_cache_gib < 1e6:
            raise ConfigError(f"kv_cache_gib is {kv_cache_gib}; expected GiB > 0")
        return kv_cache_gib
    if device.type != "cuda":
        return CPU_KV_GIB
    if not 0 < gpu_memory_utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization is {gpu_memory_utilization}; expected a share, 0 < share <= 1")
    free, total = torch.cuda.mem_get_info(device)
    return max(free - (1 - gpu_memory_utilization) * total, 0) / GIB


def _blocks(model: ModelConfig, gib: float, block_size: int, dtype: torch.dtype) -> int:
    blocks = int(gib * GIB // KvCache.bytes_per_block(model, block_size, dtype))
    if blocks < 2:
        raise ConfigError(f"{gib:.3g} GiB of KV cache hold {blocks} blocks of {block_size} tokens; expected at least 2")
    return blocks
