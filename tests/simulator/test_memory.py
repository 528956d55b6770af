"""Tests of the number of KV blocks that fit."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.errors import ConfigError
from simulator.memory import activation_bytes, estimate_num_blocks, memory_plan, weight_bytes
from simulator.models import MODELS, get_model


def test_recorded_vllm_server_is_met_within_5_percent() -> None:
    """vLLM 0.19, Llama-3.1-8B on an RTX 4090, defaults: 2,588 blocks of 16."""
    blocks = estimate_num_blocks("llama-3.1-8b", "rtx-4090", max_num_batched_tokens=2048, max_num_seqs=256)
    assert blocks == pytest.approx(2588, rel=0.05)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_weights_are_two_bytes_a_parameter_and_divide_among_devices(name: str) -> None:
    model = MODELS[name]
    assert weight_bytes(model) == 2 * model.num_parameters
    assert weight_bytes(model, "bf16", 2) == pytest.approx(model.num_parameters, rel=0.001)


def test_narrow_weights_leave_embeddings_wide() -> None:
    model = get_model("llama-3-8b")
    layers = model.layers * model.layer_parameters
    assert weight_bytes(model, "fp8") == 2 * model.num_parameters - layers
    assert weight_bytes(model, "int4") < weight_bytes(model, "fp8") < weight_bytes(model)


def test_kv_heads_beyond_one_a_device_are_replicated() -> None:
    model = get_model("llama-3-70b")  # 8 KV heads
    extra = 16 * weight_bytes(model, "bf16", 16) - weight_bytes(model)
    assert extra == pytest.approx(2 * model.layers * 8 * 8192 * 128 * 2, rel=1e-6)


def test_terms_add_up_to_what_is_usable() -> None:
    plan = memory_plan("llama-3-8b", "a100-80gb", gpu_memory_utilization=0.8)
    taken = plan.weights + plan.activations + plan.overhead + plan.num_blocks * plan.block
    assert plan.usable == int(plan.total * 0.8)
    assert 0 <= plan.usable - taken < plan.block


def test_activations_peak_in_the_sampler_or_in_the_mlp() -> None:
    model = get_model("llama-3-8b")
    assert activation_bytes(model, 2048, 256) > activation_bytes(model, 2048, 128)
    big = activation_bytes(model, 65536, 1)  # few logits, many rows: the MLP's
    assert big == 65536 * (2 * 4096 + 3 * 14336) * 2
    assert activation_bytes(model, 16, 256) == activation_bytes(model, 16, 16)  # no more rows than tokens


@pytest.mark.parametrize(
    ("more", "fewer"),
    [
        ({"gpu_memory_utilization": 0.95}, {"gpu_memory_utilization": 0.85}),
        ({"tensor_parallel": 2}, {"tensor_parallel": 1}),
        ({"weight_dtype": "fp8"}, {"weight_dtype": "bf16"}),
        ({"kv_dtype": "fp8"}, {"kv_dtype": "bf16"}),
        ({"max_num_seqs": 64}, {"max_num_seqs": 512}),
        ({"block_size": 16}, {"block_size": 32}),
    ],
)
def test_settings_move_the_blocks_the_right_way(more: dict[str, Any], fewer: dict[str, Any]) -> None:
    blocks = [estimate_num_blocks("llama-3-8b", "rtx-4090", **settings) for settings in (more, fewer)]
    assert blocks[0] > blocks[1]


@pytest.mark.parametrize(
    ("model", "hardware", "settings", "hints"),
    [
        ("llama-3.1-70b", "h100", {}, ["132.6 GiB of the 71.2 GiB", "tensor_parallel=4", "weight_dtype=int4"]),
        ("llama-3.1-8b", "rtx-4090", {"gpu_memory_utilization": 0.6}, ["higher gpu_memory_utilization"]),
        ("qwen2.5-72b", "l4", {}, ["does not fit on 1 x l4", "tensor_parallel=16"]),
    ],
)
def test_model_that_does_not_fit_is_told_what_would(
    model: str, hardware: str, settings: dict[str, Any], hints: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        estimate_num_blocks(model, hardware, **settings)
    assert [hint for hint in hints if hint not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization is 1.1"),
        ({"gpu_memory_utilization": None}, "gpu_memory_utilization is None"),
        ({"block_size": 0}, "block_size is 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"kv_dtype": "fp7"}, "unknown kv_dtype 'fp7'"),
        ({"tensor_parallel": 3}, "tensor_parallel is 3"),
    ],
)
def test_wrong_settings_get_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        estimate_num_blocks("llama-3-8b", "a100-80gb", **settings)


def test_block_counts_are_what_a_scheduler_takes() -> None:
    from scheduler.config import SchedulerConfig

    blocks = estimate_num_blocks("smollm2-135m", "cpu")
    assert SchedulerConfig(num_blocks=blocks).usable_blocks == blocks - 1
