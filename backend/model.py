"""A Llama-family decoder over one flat row of tokens: Llama, Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .rotary import cos_sin_table
from .weights import LayerWeights, Weights

if TYPE_CHECKING:
    from .kv_cache import KvCache
    from .model_config import ModelConfig
    from .ops.base import Ops, StepInputs


@dataclass(slots=True)
class _Layer:
    """One layer's weights as the operations want them: linear ones packed, the others in the activations' dtype."""

    input_norm: Tensor
    qkv: Any
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Any
    post_norm: Tensor
    gate_up: Any
    down: Any


class Model:
    """The model on one device.

    Args:
        config: the architecture.
        weights: may be forgotten by the caller; the model keeps what it needs.
        ops: how the device computes.
        max_positions: longest sequence; default: the architecture's.
    """

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops, *, max_positions: int | None = None) -> None:
        self.config = config
        self.ops = ops
        dtype, device = weights.embed.dtype, weights.embed.device
        self.dtype = ops.compute_dtype(dtype, device)
        self._exact = torch.float64 if dtype == torch.float64 else torch.float32
        positions = config.max_positions if max_positions is None else max_positions
        table = cos_sin_table(config.rope, config.head_dim, positions, self._exact)
        self.cos_sin = table.to(device)
        self._embed = weights.embed
        self._layers = [self._pack(layer) for layer in weights.layers]
        self._norm = weights.norm.to(self.dtype)
        self._lm_head = ops.pack(weights.lm_head)
        self._scale = config.head_dim**-0.5
        heads, kv_heads = config.num_heads, config.num_kv_heads
        self._split = [heads, kv_heads, kv_heads]

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, cache: KvCache) -> Tensor:
        """Logits of the rows `inputs.logits_indices`, float32 (float64 for a float64 model) ``(L, V)``.

        Writes the step's K/V into `cache`. A request's logits do not depend on who else is in the batch, beyond the
        rounding of the products.
        """
        ops, eps = self.ops, self.config.rms_norm_eps
        prepared = ops.prepare(inputs, cache, self.config, self.cos_sin)
        residual = ops.embed(inputs.input_ids, self._embed)
        normed = ops.rms_norm(residual, self._layers[0].input_norm, eps)
        for index, layer in enumerate(self._layers):
            attended = self._attention(layer, normed, cache.layer(index), prepared)
            normed, residual = ops.add_rms_norm(attended, residual, layer.post_norm, eps)
            mlp = ops.linear(ops.silu_and_mul(ops.linear(normed, layer.gate_up)), layer.down)
            if index + 1 < len(self._layers):
                normed, residual = ops.add_rms_norm(mlp, residual, self._layers[index + 1].input_norm, eps)
        rows = inputs.logits_indices
        normed, _ = ops.add_rms_norm(ops.rows(mlp, rows), ops.rows(residual, rows), self._norm, eps)
        return ops.linear(normed, self._lm_head).to(self._exact)

    def _attention(self, layer: _Layer, normed: Tensor, cache: tuple[Tensor, Tensor], prepared: Any) -> Tensor:
        ops = self.ops
        qkv = ops.linear(normed, layer.qkv, layer.qkv_bias)
        q, k, v = torch.split(qkv.view(len(qkv), -1, self.config.head_dim), self._split, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = ops.qk_norm(q, k, layer.q_norm, layer.k_norm, self.config.rms_norm_eps)
        q, k = ops.rope(q, k, prepared)
        ops.write_kv(k, v, *cache, prepared)
        return ops.linear(ops.attention(q, *cache, prepared, self._scale), layer.o)

    def _pack(self, layer: LayerWeights) -> _Layer:
        pack, dtype = self.ops.pack, self.dtype
        bias, q_norm, k_norm = layer.qkv_bias, layer.q_norm, layer.k_norm
        return _Layer(
            input_norm=layer.input_norm.to(dtype),
            qkv=pack(layer.qkv),
            qkv_bias=None if bias is None else bias.to(dtype),
            q_norm=None if q_norm is None else q_norm.to(dtype),
            k_norm=None if k_norm is None else k_norm.to(dtype),
            o=pack(layer.o),
            post_norm=layer.post_norm.to(dtype),
            gate_up=pack(layer.gate_up),
            down=pack(layer.down),
        )
