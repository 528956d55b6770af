"""The roofline of all operators but attention: products, memory-bound operators, all-reduce, LM head and sampler."""

from __future__ import annotations

from collections.abc import Iterator

from ..hardware import Efficiency, HardwareSheet
from ..models import WIDTHS, ModelSheet

SMALL_ALLREDUCE_S, SMALL_ALLREDUCE_BANDWIDTH = 9.0e-6, 60e9
"""vLLM's all-reduce kernel for small messages over NVLink on H100: 9 us, and 26 to 45 us at 1 MB
(https://github.com/sgl-project/sglang/pull/2904)."""
RING_ALLREDUCE_S, RING_ALLREDUCE_EFFICIENCY = 25.0e-6, 0.8
"""NCCL's ring: latency, and the fraction of the link bandwidth that large messages reach; assumed, not measured."""
DIRECT_LINK_BANDWIDTH = 200e9
"""Devices with links at least this fast (NVLink, Infinity Fabric) have the small-message kernel; PCIe has not."""
MOST_DOUBLINGS = 2
"""Of one side of the smallest tile: libraries have tiles of 64 to 256 rows or columns."""


class Dense:
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
            "gemm": layers * sum(self.products(rows).values()),
            "memory_bound": layers * sum(self.vectors(rows).values()) + self._vector(rows, 2 * self.model.hidden),
            "kv_write": layers * self._vector(rows, 2 * self.kv_numbers),
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

    def products(self, rows: int) -> dict[str, float]:
        """Seconds of one layer's products for `rows` rows: qkv, out, up (with gate), down; router of a mixture."""
        model, tp = self.model, self.tp
        heads = model.heads // tp
        inner = _share(model.intermediate, tp)
        active = expected_experts(model.experts, model.experts_per_token, rows)
        each = rows * model.experts_per_token / active if model.experts else float(rows)
        found = {
            "qkv": self._gemm(rows, model.hidden, heads * model.head_dim + self.kv_numbers),
            "out": self._gemm(rows, heads * model.head_dim, model.hidden),
            "up": self._gemm(each, model.hidden, inner * (2 if model.gated_mlp else 1), active),
            "down": self._gemm(each, inner, model.hidden, active),
        }
        return {**found, "router": self._gemm(rows, model.hidden, model.experts)} if model.experts else found

    def vectors(self, rows: int) -> dict[str, float]:
        """Seconds of one layer's memory-bound operators for `rows` rows: norms (two, with the residual), rope, act."""
        model = self.model
        rope = 2 * (model.heads // self.tp * model.head_dim + self.kv_numbers // 2)
        width = _share(model.intermediate, self.tp) * max(1, model.experts_per_token)
        return {
            "norms": 2 * self._vector(rows, 4 * model.hidden),
            "rope": self._vector(rows, rope),
            "act": self._vector(rows, width * (3 if model.gated_mlp else 2)),
        }

    def _gemm(self, rows: float, inner: int, outer: int, copies: float = 1.0) -> float:
        return gemm_seconds(self.hardware, self.flops, self.weight_width, rows, inner, outer, copies)

    def _vector(self, rows: int, numbers: int) -> float:
        return vector_seconds(self.hardware, rows, numbers)

    def _allreduce(self, size: float) -> float:
        """Seconds to sum `size` bytes over all devices: a ring moves 2 (n - 1) / n of them over each link."""
        if self.tp == 1:
            return 0.0
        moved, link = 2 * (self.tp - 1) / self.tp * size, self.hardware.link_bandwidth
        ring = RING_ALLREDUCE_S + moved / (link * RING_ALLREDUCE_EFFICIENCY)
        small = SMALL_ALLREDUCE_S + moved / SMALL_ALLREDUCE_BANDWIDTH
        return min(ring, small) if link >= DIRECT_LINK_BANDWIDTH else ring


def gemm_seconds(
    hardware: HardwareSheet, flops: float, width: float, rows: float, inner: int, outer: int, copies: float = 1.0
) -> float:
    """Seconds of `copies` products ``(rows, inner) x (inner, outer)`` in one kernel, weights of `width` bytes.

    ``kernel_s + (memory_s**p + compute_s**p) ** (1/p)``. Memory: the weights, and the activations in and out at 16
    bits. Compute: the tile size that takes least, as a library chooses one of several: whole tiles (the last row of
    them is padded), spread over the SMs in waves of which the last is charged in part, each tile with `tile_overhead`
    more columns of the inner dimension; a tile of fewer rows or columns loads more operands for each product.
    """
    eff = hardware.efficiency
    moved = copies * (inner * outer * width + rows * (inner + outer) * 2.0)
    memory_s = moved / (hardware.memory_bandwidth * eff.bandwidth)
    least = float("inf")
    for tile_rows, tile_cols in tiles(eff):
        waves = copies * -(-rows // tile_rows) * -(-outer // tile_cols) / hardware.sms
        waves += eff.wave * (-(-waves // 1.0) - waves)
        loads = 1.0 + eff.tile_edge * (1.0 / tile_rows + 1.0 / tile_cols)
        least = min(least, waves * tile_rows * tile_cols * loads)
    compute_s = least * hardware.sms * 2.0 * (inner + eff.tile_overhead) / (flops * eff.compute)
    slow, fast = max(memory_s, compute_s), min(memory_s, compute_s)
    return float(eff.kernel_s + slow * (1.0 + (fast / slow) ** eff.blend) ** (1.0 / eff.blend))


def tiles(eff: Efficiency) -> Iterator[tuple[int, int]]:
    """``(rows, columns)`` of the output tiles that a product may choose from."""
    for rows in range(MOST_DOUBLINGS + 1):
        for cols in range(MOST_DOUBLINGS + 1):
            if rows + cols <= eff.tile_doublings:
                yield eff.tile_rows << rows, eff.tile_cols << cols


def vector_seconds(hardware: HardwareSheet, rows: int, numbers: int) -> float:
    """Seconds of a kernel that moves `numbers` 16-bit numbers a row, a block a row.

    ``(least_s**p + memory_s**p) ** (1/p)``: at least its start and what one block takes for its row; bytes that fit
    into the L2 cache stay there from the kernel before and move at its rate, ``1 / (1 + (bytes / L2)**2)`` of them.
    """
    eff = hardware.efficiency
    least_s = eff.vector_s + eff.vector_number_s * numbers
    moved = rows * numbers * 2.0
    memory_s = moved / (hardware.memory_bandwidth * eff.vector_bandwidth)
    if eff.l2_bandwidth and hardware.l2_bytes:
        near = 1.0 / (1.0 + (moved / hardware.l2_bytes) ** 2)
        memory_s = near * moved / (hardware.memory_bandwidth * eff.l2_bandwidth) + (1.0 - near) * memory_s
    slow, fast = max(memory_s, least_s), min(memory_s, least_s)
    return float(slow * (1.0 + (fast / slow) ** eff.vector_blend) ** (1.0 / eff.vector_blend))


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


def _share(size: int, tp: int) -> int:
    return -(-size // tp)
