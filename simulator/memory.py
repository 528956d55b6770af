"""How many KV blocks fit: device memory less weights, the peak of a profiling step and the engine's own overhead."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from scheduler.errors import ConfigError, unknown_name

from .hardware import GIB, HardwareSheet, get_hardware
from .models import WIDTHS, ModelSheet, get_model

SAMPLER_BYTES = 2 + 4 + 4 + 8 + 4 + 4
"""Bytes a logit takes at the sampler's peak: the bf16 logits, their fp32 copy, and for top-k/top-p the sorted values,
their int64 indices, their probabilities and the running sum of these (vLLM's `apply_top_k_top_p` in PyTorch)."""
OVERHEAD_BYTES = 384 * 2**20
"""CUDA graphs, workspaces and libraries. With the other terms as computed here, a vLLM 0.19 server on an RTX 4090
(Llama-3.1-8B, 2,588 blocks) had 350 MiB of it; rounded up to the next 128 MiB."""


@dataclass(frozen=True)
class MemoryPlan:
    """Where one device's memory goes, bytes.

    Attributes:
        total: what the device has.
        usable: `total` times ``gpu_memory_utilization``.
        weights: its share of the parameters.
        activations: peak of the profiling step.
        overhead: graphs, workspaces and libraries.
        block: one KV block, all layers.
        num_blocks: KV blocks that fit into the rest, the null block included.
    """

    total: int
    usable: int
    weights: int
    activations: int
    overhead: int
    block: int
    num_blocks: int

    def as_dict(self) -> dict[str, int]:
        """All terms as JSON values."""
        return asdict(self)


def estimate_num_blocks(model: ModelSheet | str, hardware: HardwareSheet | str, **settings: Any) -> int:
    """KV blocks that vLLM would find room for; the arguments are those of `memory_plan`."""
    return memory_plan(model, hardware, **settings).num_blocks


def memory_plan(
    model: ModelSheet | str,
    hardware: HardwareSheet | str,
    *,
    block_size: int = 16,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    gpu_memory_utilization: float = 0.9,
    tensor_parallel: int = 1,
    weight_dtype: str = "bf16",
    kv_dtype: str = "bf16",
    overhead_bytes: int = OVERHEAD_BYTES,
) -> MemoryPlan:
    """Divide one device's memory as vLLM does at start.

    vLLM loads the weights, runs one step of ``max_num_batched_tokens`` tokens that samples ``max_num_seqs`` rows, takes
    the peak of that and what the engine itself holds from ``total * gpu_memory_utilization``, and gives the rest to KV.

    Args:
        model: sheet, or its name or path.
        hardware: sheet of one device, or its name.
        block_size: tokens a KV block.
        max_num_batched_tokens: token budget of a step.
        max_num_seqs: slots.
        gpu_memory_utilization: fraction of the device's memory that the engine may use, 0 < f <= 1.
        tensor_parallel: devices that share each layer: weights and KV are divided among them.
        weight_dtype: width of the layers' weights, a key of `simulator.models.WIDTHS`.
        kv_dtype: width of the KV cache, likewise.
        overhead_bytes: graphs, workspaces and libraries.

    Raises:
        ConfigError: a setting out of range, or a model that leaves no room for KV (the sentence says what would).
    """
    model = get_model(model) if isinstance(model, str) else model
    hardware = get_hardware(hardware) if isinstance(hardware, str) else hardware
    for name, count in (("block_size", block_size), ("max_num_seqs", max_num_seqs)):
        if count < 1:
            raise ConfigError(f"{name} is {count}; expected a whole number >= 1")
    if not isinstance(gpu_memory_utilization, (int, float)) or not 0 < gpu_memory_utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization is {gpu_memory_utilization!r}; expected 0 < fraction <= 1")
    for name, dtype in (("weight_dtype", weight_dtype), ("kv_dtype", kv_dtype)):
        if dtype not in WIDTHS:
            raise unknown_name(name, str(dtype), WIDTHS)
    model.check_tensor_parallel(tensor_parallel)
    usable = int(hardware.memory_bytes * gpu_memory_utilization)
    weights = weight_bytes(model, weight_dtype, tensor_parallel)
    activations = activation_bytes(model, max_num_batched_tokens, max_num_seqs, tensor_parallel)
    block = block_size * model.kv_bytes_per_token(WIDTHS[kv_dtype], tensor_parallel)
    left = usable - weights - activations - overhead_bytes
    if left < 2 * block:  # the null block and one to use
        raise _no_room(model, hardware, tensor_parallel, weight_dtype, usable, usable - left)
    return MemoryPlan(hardware.memory_bytes, usable, weights, activations, overhead_bytes, block, left // block)


def weight_bytes(model: ModelSheet, weight_dtype: str = "bf16", tensor_parallel: int = 1) -> int:
    """Bytes of parameters on one device: layers at `weight_dtype`; embedding, LM head, norms and biases at 16 bits.

    Everything is divided among the devices but KV heads, of which each device has at least one.
    """
    replicated = max(0, tensor_parallel - model.kv_heads) * model.hidden * model.head_dim * 2
    matrices = model.layers * (model.layer_parameters + replicated)
    rest = model.num_parameters - model.layers * model.layer_parameters
    return round((matrices * WIDTHS[weight_dtype] + rest * 2.0) / tensor_parallel)


def activation_bytes(model: ModelSheet, tokens: int, logits_rows: int, tensor_parallel: int = 1) -> int:
    """Peak bytes of a step of `tokens` rows that samples `logits_rows`: the MLP's or the sampler's, never both.

    In the MLP the hidden states and the residual, and the outputs of up (and gate) and of the activation live at once;
    at the sampler the hidden states and `SAMPLER_BYTES` for each logit.
    """
    states = tokens * model.hidden * 2
    width = model.intermediate * max(1, model.experts_per_token) // tensor_parallel
    mlp = 2 * states + tokens * width * (3 if model.gated_mlp else 2) * 2
    sampler = states + min(tokens, logits_rows) * model.vocab * SAMPLER_BYTES
    return max(mlp, sampler)


def _no_room(
    model: ModelSheet, hardware: HardwareSheet, tp: int, weight_dtype: str, usable: int, needed: int
) -> ConfigError:
    ways = []
    for devices in (2, 4, 8, 16):
        if devices > tp and weight_bytes(model, weight_dtype, devices) < 0.8 * usable and model.heads % devices == 0:
            ways.append(f"tensor_parallel={devices}")
            break
    for dtype in ("fp8", "int4"):
        if WIDTHS[dtype] < WIDTHS[weight_dtype] and weight_bytes(model, dtype, tp) < 0.8 * usable:
            ways.append(f"weight_dtype={dtype}")
            break
    ways.append("a higher gpu_memory_utilization, a smaller max_num_seqs or a device with more memory")
    return ConfigError(
        f"{model.name} does not fit on {tp} x {hardware.name}: weights, activations and overhead take "
        f"{needed / GIB:.1f} GiB of the {usable / GIB:.1f} GiB usable on each device; try {', '.join(ways)}"
    )
