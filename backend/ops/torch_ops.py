"""The operations of a forward by torch operators: the CPU's path, which runs on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from ..kv_cache import KvCache
from ..model_config import ModelConfig
from .base import StepInputs
from .packed_linear import PackedLinear, cpu_compute_dtype
from .scratch import Scratch
from .torch_attention import AttentionPlan, attend, plan_attention

HALF_TYPES = (torch.float16, torch.bfloat16)
SPREAD_ROWS = 1024
"""Up to so many rows the cosines and sines are copied for every head, which spares a broadcast in every layer; beyond,
the copies would take too much memory (10 MB each at 1,024 rows of 40 heads of 64)."""


@dataclass(slots=True)
class Prepared:
    """What the layers of a step share.

    Attributes:
        cos: cosines of each row for all heads of Q and K (so that products run over whole rows), both halves of a head
            alike, ``(T, Hq + Hkv, D)``.
        sin: sines, negative in the first half.
        write_rows: rows that write K/V, int64; None: all do.
        write_slots: where to, int64.
        attention: the plan of the step's attention.
    """

    cos: Tensor
    sin: Tensor
    write_rows: Tensor | None
    write_slots: Tensor
    attention: AttentionPlan


class TorchOps:
    """See `Ops`. Keeps buffers from step to step, so one instance serves one model in one thread at a time."""

    name = "torch"

    def __init__(self) -> None:
        self._scratch = Scratch()
        self._eps: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}
        self._compute: torch.dtype | None = None

    def compute_dtype(self, dtype: torch.dtype, device: torch.device) -> torch.dtype:
        """The weights' dtype, or float32 for half types on a CPU that has no instructions for them."""
        self._compute = cpu_compute_dtype(dtype) if device.type == "cpu" else dtype
        return self._compute

    def pack(self, weight: Tensor) -> PackedLinear:
        """The weight in the compute dtype, laid out for the CPU where that pays."""
        return PackedLinear(weight.to(self.compute_dtype(weight.dtype, weight.device)))

    def prepare(self, inputs: StepInputs, cache: KvCache, config: ModelConfig, cos_sin: Tensor) -> Prepared:
        """Gathered cosines and sines, the rows that write, and the attention's plan."""
        dtype = self._compute or cos_sin.dtype
        cos, sin = _angles(cos_sin.index_select(0, inputs.positions).to(dtype), config.num_heads + config.num_kv_heads)
        writes = inputs.slot_mapping >= 0
        rows = None if bool(writes.all()) else writes.nonzero().view(-1)
        slots = inputs.slot_mapping if rows is None else inputs.slot_mapping.index_select(0, rows)
        attention = plan_attention(inputs, cache, config.num_heads, dtype, self._scratch)
        return Prepared(cos, sin, rows, slots, attention)

    def embed(self, input_ids: Tensor, table: Tensor) -> Tensor:
        """Rows of the table."""
        return F.embedding(input_ids, table).to(self._compute or table.dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Mean square and scale in float32 (float64 for float64), then the weight in `x`'s dtype, as transformers does.

        The mean square comes from the vector norm, which torch computes in one vectorised pass.
        """
        return torch.mul(x, self._inverse_rms(x, eps)).to(x.dtype).mul_(weight)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """In place in `residual`."""
        residual.add_(x)
        return self.rms_norm(residual, weight, eps), residual

    def linear(self, x: Tensor, weight: PackedLinear, bias: Tensor | None = None) -> Tensor:
        """The product in the weight's layout."""
        return weight(x, bias)

    def qk_norm(self, q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Each head by itself, in place."""
        for x, weight in ((q, q_weight), (k, k_weight)):
            x.copy_(torch.mul(x, self._inverse_rms(x, eps))).mul_(weight)
        return q, k

    def rope(self, q: Tensor, k: Tensor, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """In place: ``x * cos + (x rolled by half a head) * sin``, the sign of the first half being in `sin`."""
        heads = q.shape[1] + k.shape[1]
        both = q.as_strided((len(q), heads, q.shape[2]), q.stride())  # K lies behind Q
        rolled = torch.roll(both, q.shape[2] // 2, -1)
        both.mul_(prepared.cos).addcmul_(rolled, prepared.sin)
        return q, k

    def write_kv(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, prepared: Prepared) -> None:
        """One indexed copy each; rows that write nowhere are left out."""
        for new, cache in ((k, keys), (v, values)):
            if prepared.write_rows is not None:
                new = new.index_select(0, prepared.write_rows)
            cache.view(-1, *cache.shape[2:]).index_copy_(0, prepared.write_slots, new.to(cache.dtype))

    def attention(self, q: Tensor, keys: Tensor, values: Tensor, prepared: Prepared, scale: float) -> Tensor:
        """See `torch_attention`."""
        return attend(q, keys, values, prepared.attention, scale)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """Into a buffer that the next call overwrites."""
        gate, up = gate_up.chunk(2, dim=-1)
        out = self._scratch.take("mlp", tuple(gate.shape), gate.dtype, gate.device)
        return torch.ops.aten.silu.out(gate, out=out).mul_(up)  # type: ignore[no-any-return]  # torch.ops has no types

    def rows(self, x: Tensor, indices: Tensor) -> Tensor:
        """Those rows, copied."""
        return x.index_select(0, indices)

    def _inverse_rms(self, x: Tensor, eps: float) -> Tensor:
        """``1 / sqrt(mean(x^2) + eps)``, ``(..., 1)``."""
        wide = torch.float32 if x.dtype in HALF_TYPES else x.dtype
        length = torch.linalg.vector_norm(x, 2, -1, True, dtype=wide)
        return torch.addcmul(self._constant(eps, length), length, length, value=1 / x.shape[-1]).rsqrt_()

    def _constant(self, value: float, like: Tensor) -> Tensor:
        key = (value, like.dtype, like.device)
        if key not in self._eps:
            self._eps[key] = torch.full((1,), value, dtype=like.dtype, device=like.device)
        return self._eps[key]


def _angles(cos_sin: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """``(cos, cos)`` and ``(-sin, sin)`` of ``(T, D)`` rows of the table, for each head: ``(T, heads, D)``."""
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
    both = [torch.cat(halves, -1).expand(-1, heads, -1) for halves in ((cos, cos), (-sin, sin))]
    if len(cos_sin) <= SPREAD_ROWS:
        both = [angles.contiguous() for angles in both]
    return both[0], both[1]
