"""The roofline cost model: a step from the operations and bytes of each operator, and how near kernels come to peak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from scheduler.errors import ConfigError, unknown_name
from scheduler.plan import StepShape

from ..hardware import HardwareSheet
from ..models import WIDTHS, ModelSheet
from .base import CostModel, StepCost, number_option

HOST_REQUEST_S = 13.5e-6
"""Host seconds a request and step: vLLM 0.33's `schedule` and `update_from_output`, with prefix caching, took 0.42 ms
at 32 running requests, 3.16 at 256 and 14.0 at 1,024 on a 2-core machine; the least-squares line through the origin."""
SMALL_ALLREDUCE_S, SMALL_ALLREDUCE_BANDWIDTH = 9.0e-6, 60e9
"""vLLM's all-reduce kernel for small messages over NVLink on H100: 9 us, and 26 to 45 us at 1 MB
(https://github.com/sgl-project/sglang/pull/2904)."""
RING_ALLREDUCE_S, RING_ALLREDUCE_EFFICIENCY = 25.0e-6, 0.8
"""NCCL's ring: latency, and the fraction of the link bandwidth that large messages reach; assumed, not measured."""
DIRECT_LINK_BANDWIDTH = 200e9
"""Devices with links at least this fast (NVLink, Infinity Fabric) have the small-message kernel; PCIe has not."""


class RooflineCost(CostModel):
    """Prices each operator at the slower of its arithmetic and its memory traffic.

    docs/cost-models.md gives the formulas and how well they meet measured tables. What depends only on the number of
    rows is computed once for each number and kept, so a step costs about a microsecond to price.

    Args:
        weight_dtype: width of the layers' weights: ``bf16``, ``fp8``, ``int8`` or ``int4`` (embedding and LM head stay
            at 16 bits, as vLLM keeps them). ``fp8`` and ``int8`` are computed at the device's 8-bit rate where it has
            one; ``int4`` is widened on the way and computed in bf16.
        kv_dtype: width of the KV cache: ``bf16`` or ``fp8``.
        mixed_attention: ``fused``: prefills and decodes of a step share one kernel, as with vLLM's FlashAttention
            backend; ``separate``: a kernel each.
        layer_launch_s: seconds a layer in which the device waits for launches; 0 with captured graphs.
        host_step_s, host_request_s: host seconds a step, and for each of its requests.
        setup: ``model`` and ``hardware`` (both needed) and ``tensor_parallel``.
    """

    name = "roofline"
    out_of_range = "more rows in a step than in the measurements that this hardware's efficiencies were fitted to"

    def __init__(
        self,
        *,
        weight_dtype: str = "bf16",
        kv_dtype: str = "bf16",
        mixed_attention: str = "fused",
        layer_launch_s: float = 0.0,
        host_step_s: float = 0.0,
        host_request_s: float = HOST_REQUEST_S,
        **setup: Any,
    ) -> None:
        super().__init__(**setup)
        if self.model is None or self.hardware is None:
            raise ConfigError("cost model roofline needs a model and hardware")
        self.model.check_tensor_parallel(self.tensor_parallel)
        for option, value in (("weight_dtype", weight_dtype), ("kv_dtype", kv_dtype)):
            if value not in WIDTHS:
                raise unknown_name(option, str(value), WIDTHS)
        if mixed_attention not in ("fused", "separate"):
            raise unknown_name("mixed_attention", str(mixed_attention), ("fused", "separate"))
        self._options = {
            "weight_dtype": weight_dtype,
            "kv_dtype": kv_dtype,
            "mixed_attention": mixed_attention,
            "layer_launch_s": number_option("layer_launch_s", layer_launch_s),
            "host_step_s": number_option("host_step_s", host_step_s),
            "host_request_s": number_option("host_request_s", host_request_s),
        }
        self._host_step, self._host_request = float(host_step_s), float(host_request_s)
        self._dense = _Dense(self.model, self.hardware, self.tensor_parallel, weight_dtype, float(layer_launch_s))
        self._attention = _Attention(
            self.model, self.hardware, self.tensor_parallel, WIDTHS[kv_dtype], mixed_attention == "separate"
        )
        self._row_s = _Memo(lambda rows: sum(self._dense.parts(rows).values()))
        self._logits_s = _Memo(lambda rows: sum(self._dense.logits_parts(rows).values()))
        self._mixed_s, self._decode = self._attention.mixed_s, self._attention.decode
        self._window = self.model.sliding_window or 0
        self._measured = self.hardware.efficiency.measured_tokens or float("inf")

    def step_cost(self, shape: StepShape) -> StepCost:
        """The price of a step of this shape."""
        rows, tokens, requests = shape.computed_tokens, shape.prefill_tokens, shape.num_reqs
        if rows > self._measured:
            self.extrapolated_steps += 1
        if self._window:
            attention = self._attention_s(shape)
        elif tokens:
            decodes = shape.decode_tokens
            attention = self._mixed_s(
                decodes,
                shape.decode_context,
                tokens,
                shape.prefill_context,
                shape.prefill_pairs,
                requests - decodes,
            )
        else:
            floor, row_s, position_s = self._decode
            attention = floor + row_s * shape.decode_tokens + position_s * shape.decode_context
        return StepCost(
            self._row_s[rows] + self._logits_s[shape.logits_rows] + attention,
            self._host_step + self._host_request * requests,
            self,
            shape,
        )

    def breakdown(self, shape: StepShape) -> dict[str, float]:
        """Seconds by part: gemm, attention, lm_head, sampler, memory_bound, kv_write, launch, allreduce and host."""
        return {
            **self._dense.parts(shape.computed_tokens),
            "attention": self._attention_s(shape),
            **self._dense.logits_parts(shape.logits_rows),
            "host": self._host_step + self._host_request * shape.num_reqs,
        }

    def dense_parts(self, rows: int) -> dict[str, float]:
        """Seconds by part of the layers (less attention) and the embedding, for `rows` rows."""
        return self._dense.parts(rows)

    def logits_parts(self, rows: int) -> dict[str, float]:
        """Seconds of the LM head and the sampler, for `rows` rows."""
        return self._dense.logits_parts(rows)

    def attention_s(self, rows: int, read: int, tokens: int, context: int, pairs: int, prefills: int) -> float:
        """Seconds of all layers' attention: `rows` decode rows that read `read` KV positions in all, and `prefills`
        prefills of `tokens` rows that end with `context` positions and attend to `pairs`.
        """
        if tokens:
            return self._attention.mixed_s(rows, read, tokens, context, pairs, prefills)
        return self._attention.decode_s(rows, read)

    def options(self) -> dict[str, Any]:
        """The options it was built with."""
        return dict(self._options)

    def _attention_s(self, shape: StepShape) -> float:
        rows, read = shape.decode_tokens, shape.decode_context
        tokens, context, pairs = shape.prefill_tokens, shape.prefill_context, shape.prefill_pairs
        prefills = shape.num_reqs - rows
        if self._window and read + context > self._window:  # else no request's context can exceed the window
            rows, read, tokens, context, pairs, prefills = windowed_sums(shape, self._window)
        return self.attention_s(rows, read, tokens, context, pairs, prefills)


class _Memo(dict[int, float]):
    """Remembers a function of a whole number; a hit is one dictionary lookup."""

    def __init__(self, function: Callable[[int], float]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: int) -> float:
        value = self[key] = self._function(key)
        return value


class _Dense:
    """Everything but attention: a function of the rows of the step, and of its logits rows."""

    def __init__(self, model: ModelSheet, hardware: HardwareSheet, tp: int, weight_dtype: str, launch_s: float) -> None:
        self.model, self.hardware, self.tp = model, hardware, tp
        self.launch_s = launch_s
        self.weight_width = WIDTHS[weight_dtype]
        self.flops = peak_flops(hardware, weight_dtype)
        self.kv_heads = max(1, model.kv_heads // tp)  # replicated when there are more devices than KV heads
        self.kv_numbers = 2 * self.kv_heads * model.head_dim

    def parts(self, rows: int) -> dict[str, float]:
        """Seconds of the layers and the embedding for `rows` rows."""
        if rows == 0:
            return dict.fromkeys(("gemm", "memory_bound", "kv_write", "launch", "allreduce"), 0.0)
        layers = self.model.layers
        return {
            "gemm": layers * self._layer_gemms(rows),
            "memory_bound": layers * self._layer_vectors(rows) + self._embedding(rows),
            "kv_write": layers * self._vector(rows * 4.0 * self.kv_numbers),
            "launch": layers * self.launch_s,
            "allreduce": (2 * layers + 1) * self._allreduce(rows * self.model.hidden * 2.0),
        }

    def logits_parts(self, rows: int) -> dict[str, float]:
        """Seconds of the LM head and the sampler for `rows` rows."""
        if rows == 0:
            return {"lm_head": 0.0, "sampler": 0.0}
        hardware, vocab = self.hardware, self.model.vocab
        head = gemm_seconds(hardware, hardware.bf16_flops, 2.0, rows, self.model.hidden, _share(vocab, self.tp))
        gather = 0.0 if self.tp == 1 else self._allreduce(rows * vocab * 2.0) / 2  # a gather is half an all-reduce
        eff = hardware.efficiency
        sample = max(eff.sampler_s, eff.sampler_passes * rows * vocab * 4.0 / hardware.memory_bandwidth)
        return {"lm_head": head + gather, "sampler": sample}

    def _layer_gemms(self, rows: int) -> float:
        model, tp = self.model, self.tp
        heads = model.heads // tp
        qkv = self._gemm(rows, model.hidden, heads * model.head_dim + self.kv_numbers)
        out = self._gemm(rows, heads * model.head_dim, model.hidden)
        inner = _share(model.intermediate, tp)
        active = expected_experts(model.experts, model.experts_per_token, rows)
        each = rows * model.experts_per_token / active if model.experts else float(rows)
        up = self._gemm(each, model.hidden, inner * (2 if model.gated_mlp else 1), active)
        down = self._gemm(each, inner, model.hidden, active)
        router = self._gemm(rows, model.hidden, model.experts) if model.experts else 0.0
        return qkv + out + up + down + router

    def _gemm(self, rows: float, inner: int, outer: int, copies: float = 1.0) -> float:
        return gemm_seconds(self.hardware, self.flops, self.weight_width, rows, inner, outer, copies)

    def _layer_vectors(self, rows: int) -> float:
        """Two norms with their residual, rotation, and the activation: each number read and written once, 16 bits."""
        model = self.model
        norm = 4 * model.hidden
        rope = 2 * (model.heads // self.tp * model.head_dim + self.kv_numbers // 2)
        width = _share(model.intermediate, self.tp) * max(1, model.experts_per_token)
        activation = width * (3 if model.gated_mlp else 2)
        return sum(self._vector(rows * numbers * 2.0) for numbers in (norm, norm, rope, activation))

    def _embedding(self, rows: int) -> float:
        return self._vector(rows * self.model.hidden * 4.0)

    def _vector(self, moved: float) -> float:
        eff = self.hardware.efficiency
        return max(eff.vector_s, moved / (self.hardware.memory_bandwidth * eff.vector_bandwidth))

    def _allreduce(self, size: float) -> float:
        """Seconds to sum `size` bytes over all devices: a ring moves 2 (n - 1) / n of them over each link."""
        if self.tp == 1:
            return 0.0
        moved, link = 2 * (self.tp - 1) / self.tp * size, self.hardware.link_bandwidth
        ring = RING_ALLREDUCE_S + moved / (link * RING_ALLREDUCE_EFFICIENCY)
        small = SMALL_ALLREDUCE_S + moved / SMALL_ALLREDUCE_BANDWIDTH
        return min(ring, small) if link >= DIRECT_LINK_BANDWIDTH else ring


class _Attention:
    """Attention of all layers, from the sums of a step; all constants are worked out beforehand.

    Thread blocks take one tile of query rows of one head (of one KV head, where the group is packed) through all keys.
    Beside prefills a decode row is such a tile too, mostly empty: this is what makes mixed steps dear.
    """

    def __init__(self, model: ModelSheet, hardware: HardwareSheet, tp: int, kv_width: float, separate: bool) -> None:
        eff, layers = hardware.efficiency, model.layers
        heads, kv_heads = model.heads // tp, max(1, model.kv_heads // tp)
        kv_s = 2 * kv_heads * model.head_dim * kv_width / (hardware.memory_bandwidth * eff.kv_bandwidth)
        block_s = eff.decode_block_s * kv_heads / hardware.sms
        # Seconds an SM takes for one tile of query rows against one key: two products of 2 x head_dim FLOPs a pair.
        key_s = 4 * model.head_dim * eff.query_tile * hardware.sms / (hardware.bf16_flops * eff.attention_compute)
        self.decode = (layers * eff.decode_s, layers * block_s, layers * kv_s)
        self.tile_tokens = max(1, eff.query_tile * kv_heads // heads) if eff.packs_group else eff.query_tile
        self.tiles_per_sm = (kv_heads if eff.packs_group else heads) / hardware.sms
        self.tile_keys, self.tail, self.key_s = eff.tile_keys, eff.tail, layers * key_s
        self.mixed_row = self.tiles_per_sm * eff.tile_keys
        self.mixed_position = max(self.tiles_per_sm, kv_s / key_s)  # the KV must be read, too
        self.separate = separate

    def decode_s(self, rows: int, context: int) -> float:
        """Seconds of a kernel for decode rows alone."""
        floor, row_s, position_s = self.decode
        return floor + row_s * rows + position_s * context if rows else 0.0

    def mixed_s(self, rows: int, read: int, tokens: int, context: int, pairs: int, requests: int) -> float:
        """Seconds of `tokens` prefill rows of `requests` requests, with `rows` decode rows that read `read` positions.

        One kernel for all, or for the prefills only and another for the decodes.
        """
        if requests < 1:
            requests = 1
        overhead = self.tile_keys
        tiles = self.tiles_per_sm * requests * -(-tokens // (self.tile_tokens * requests))
        pooled = tiles * (pairs / tokens + overhead)
        beside = 0.0
        if self.separate:
            beside = self.decode_s(rows, read)
        else:
            pooled += self.mixed_row * rows + self.mixed_position * read
            if rows and read * requests > context * rows:
                context, requests = read, rows  # a decode row has the longest way
        longest = context / requests + overhead
        if longest > pooled:
            return self.key_s * (longest + self.tail * pooled) + beside
        return self.key_s * (pooled + self.tail * longest) + beside


def gemm_seconds(
    hardware: HardwareSheet, flops: float, width: float, rows: float, inner: int, outer: int, copies: float = 1.0
) -> float:
    """Seconds of `copies` products ``(rows, inner) x (inner, outer)`` in one kernel, weights of `width` bytes.

    ``kernel_s + (memory_s**p + compute_s**p) ** (1/p)``. Memory: the weights, and the activations in and out at 16
    bits. Compute: whole tiles of ``tile_rows x tile_cols`` (the last row of tiles is padded), spread over the SMs in
    waves of which the last is charged in part, each tile with `tile_overhead` more columns of the inner dimension.
    """
    eff = hardware.efficiency
    moved = copies * (inner * outer * width + rows * (inner + outer) * 2.0)
    memory_s = moved / (hardware.memory_bandwidth * eff.bandwidth)
    waves = copies * -(-rows // eff.tile_rows) * -(-outer // eff.tile_cols) / hardware.sms
    waves += eff.wave * (-(-waves // 1.0) - waves)
    tile_flops = 2.0 * eff.tile_rows * eff.tile_cols * (inner + eff.tile_overhead)
    compute_s = waves * hardware.sms * tile_flops / (flops * eff.compute)
    slow, fast = max(memory_s, compute_s), min(memory_s, compute_s)
    return float(eff.kernel_s + slow * (1.0 + (fast / slow) ** eff.blend) ** (1.0 / eff.blend))


def peak_flops(hardware: HardwareSheet, weight_dtype: str) -> float:
    """FLOP/s of the layers' products: the 8-bit rate where weights are 8 bits wide and the device has one."""
    if weight_dtype == "fp8" and hardware.fp8_flops is not None:
        return hardware.fp8_flops
    if weight_dtype == "int8" and hardware.int8_ops is not None:
        return hardware.int8_ops
    return hardware.bf16_flops


def expected_experts(experts: int, per_token: int, rows: int) -> float:
    """Distinct experts that `rows` tokens are routed to, each to `per_token` drawn evenly: E (1 - (1 - k/E)^rows).

    1 for a dense model (`experts` is 0).
    """
    return experts * (1.0 - (1.0 - per_token / experts) ** rows) if experts else 1.0


def windowed_sums(shape: StepShape, window: int) -> tuple[int, int, int, int, int, int]:
    """``(decodes, context, prefill tokens, context, pairs, prefills)`` with no row attending beyond `window` positions.

    Exact from the per-request arrays where the shape has them; else each request is taken to have the mean context.
    """
    try:
        new, before = shape.per_request()
    except LookupError:
        return _windowed_means(shape, window)
    if shape.layout == "padded" or int(new.sum()) != shape.decode_tokens + shape.prefill_tokens:
        return _windowed_means(shape, window)  # padding rows are in the sums alone
    decode = (new == 1) & (before > 0)
    reach = np.minimum(before[decode] + 1, window)
    n, c = new[~decode], before[~decode]
    full = np.clip(n + c - window, 0, n)  # rows that see a whole window
    rising = n - full
    pairs = full * window + rising * c + rising * (rising + 1) // 2
    held = np.minimum(n + c, window + n)
    return (
        shape.decode_tokens, int(reach.sum()), shape.prefill_tokens, int(held.sum()), int(pairs.sum()), len(n),
    )  # fmt: skip


def _windowed_means(shape: StepShape, window: int) -> tuple[int, int, int, int, int, int]:
    prefills = max(0, shape.num_reqs - shape.decode_tokens)
    return (
        shape.decode_tokens,
        min(shape.decode_context, shape.decode_tokens * window),
        shape.prefill_tokens,
        min(shape.prefill_context, prefills * window + shape.prefill_tokens),
        min(shape.prefill_pairs, shape.prefill_tokens * window),
        prefills,
    )


def _share(size: int, tp: int) -> int:
    return -(-size // tp)
