"""The operations of a forward by the project's Triton kernels: the GPU's path.

Matrix products are torch's (cuBLAS); the rectangle of a padded step attends by torch operators, as on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from scheduler.errors import ConfigError

from ..kernels import gather, kv_write, mlp, norm, rope
from ..kernels.attention import RaggedBatch, attention
from ..kv_cache import KvCache
from ..model_config import ModelConfig
from . import torch_ops
from .base import PaddedAttention, StepInputs

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(slots=True)
class Prepared:
    """What the layers of a step share.

    Attributes:
        positions: of each row, int64 ``(T,)``.
        slot_mapping: where each row's K/V is written.
        cos_sin: the table of all positions, ``(max positions, D)``.
        attention: the flat batch, or what torch prepared for a rectangle.
    """

    positions: Tensor
    slot_mapping: Tensor
    cos_sin: Tensor
    attention: RaggedBatch | torch_ops.Prepared


class TritonOps:
    """See `Ops`. One instance serves one model in one thread at a time."""

    name = "triton"

    def __init__(self) -> None:
        self._padded = torch_ops.TorchOps()

    def compute_dtype(self, dtype: torch.dtype, device: torch.device) -> torch.dtype:
        """The weights' dtype; raises ConfigError for one that the kernels, which add up in float32, cannot honour."""
        if dtype not in DTYPES:
            names = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
            raise ConfigError(f"dtype {str(dtype).removeprefix('torch.')} needs ops 'torch'; 'triton' takes {names}")
        self._padded.compute_dtype(dtype, device)
        return dtype

    def pack(self, weight: Tensor) -> Tensor:
        """As it is."""
        return weight

    def prepare(self, inputs: StepInputs, cache: KvCache, config: ModelConfig, cos_sin: Tensor) -> Prepared:
        """Nothing is gathered for a flat row: its kernels follow the indices themselves."""
        step = inputs.attention
        attends: RaggedBatch | torch_ops.Prepared
        if isinstance(step, PaddedAttention):
            attends = self._padded.prepare(inputs, cache, config, cos_sin)
        else:
            attends = RaggedBatch(
                step.query_start_loc, step.seq_lens, step.block_table, step.max_query_len, step.max_seq_len, step.slots
            )
        return Prepared(inputs.positions, inputs.slot_mapping, cos_sin, attends)

    def embed(self, input_ids: Tensor, table: Tensor) -> Tensor:
        """Rows of the table."""
        return gather.gather_rows(table, input_ids)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """One program a row."""
        return norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Both in one pass."""
        return norm.add_rms_norm(x, residual, weight, eps)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """By cuBLAS."""
        return F.linear(x, weight, bias)

    def qk_norm(self, q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """In place."""
        return norm.head_norm(q, q_weight, eps), norm.head_norm(k, k_weight, eps)

    def rope(self, q: Tensor, k: Tensor, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """In place, both in one launch."""
        rope.rope(q, k, prepared.positions, prepared.cos_sin)
        return q, k

    def write_kv(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, prepared: Prepared) -> None:
        """Both in one launch."""
        kv_write.write_kv(k, v, keys, values, prepared.slot_mapping)

    def attention(self, q: Tensor, keys: Tensor, values: Tensor, prepared: Prepared, scale: float) -> Tensor:
        """One ragged kernel for chunks and decodes, or torch for a rectangle."""
        if isinstance(prepared.attention, RaggedBatch):
            return attention(q, keys, values, prepared.attention, scale)
        return self._padded.attention(q, keys, values, prepared.attention, scale)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """In one pass."""
        return mlp.silu_and_mul(gate_up)

    def rows(self, x: Tensor, indices: Tensor) -> Tensor:
        """Those rows, copied."""
        return gather.gather_rows(x, indices)
