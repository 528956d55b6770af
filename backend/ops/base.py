"""What a forward needs: the step's input tensors, and the operations that a device path must offer.

Letters used in shapes: T rows of the step (graph padding included), L rows that get logits, N requests, R x C a
rectangle, W KV positions, H hidden size, Hq / Hkv query / KV heads, D head size, I MLP size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from scheduler.batch import FlatBatch, PaddedBatch

    from ..kv_cache import KvCache
    from ..model_config import ModelConfig


@dataclass(slots=True)
class FlatAttention:
    """Who attends to what in a flat row of N requests; all tensors on the model's device.

    Attributes:
        query_start_loc: request i owns rows ``[loc[i], loc[i + 1])``, int32 ``(N + 1,)``.
        seq_lens: KV positions each request attends over, its new ones included, int32 ``(N,)``.
        block_table: block ids, int32 ``(N, most blocks held)``, filled up with null block 0; with `slots` the table of
            all seats.
        max_query_len: the longest chunk, or a bound.
        max_seq_len: the longest context, or a bound.
        host: the same facts in numpy, so that a CPU path need not read tensors element by element; None where the
            inputs were made on the device.
        slots: row of the block table of each request, ``(N,)``; None: its own number.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    max_query_len: int
    max_seq_len: int
    host: FlatBatch | None
    slots: Tensor | None = None


@dataclass(slots=True)
class PaddedAttention:
    """Who attends to what in a rectangle of R rows x C columns, flattened in row-major order (T = R * C).

    Attributes:
        batch: the rectangle in numpy.
        block_table: block ids, int32 ``(R, most blocks held)``, filled up with null block 0.
        mask: which KV positions each cell attends to, bool ``(R, C, W)``; padding sees its row's first position
            (``batch.attention_mask(padding_sees_first=True)``).
        rows, cols, width: R, C, W.
    """

    batch: PaddedBatch
    block_table: Tensor
    mask: Tensor
    rows: int
    cols: int
    width: int


@dataclass(slots=True)
class StepInputs:
    """The tensors of one step; padding rows of a captured graph come last and belong to no request.

    Attributes:
        input_ids: int32 or int64 ``(T,)``.
        positions: int64 ``(T,)``.
        slot_mapping: where each row's K/V is written, int64 ``(T,)``; -1 writes nowhere.
        logits_indices: rows that get logits, int64 ``(L,)``.
        attention: the layout's part.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    logits_indices: Tensor
    attention: FlatAttention | PaddedAttention


class Ops(Protocol):
    """The operations of a forward on one kind of device.

    Operations may work in place on what they are given, except on weights: the caller uses only what comes back.
    """

    name: str

    def compute_dtype(self, dtype: torch.dtype, device: torch.device) -> torch.dtype:
        """The dtype of activations for weights of `dtype`: the same, or a wider one that the device is faster in."""

    def pack(self, weight: Tensor) -> Any:
        """A linear layer's weight ``(out, in)`` in the form that `linear` multiplies fastest; once per weight."""

    def prepare(self, inputs: StepInputs, cache: KvCache, config: ModelConfig, cos_sin: Tensor) -> Any:
        """Whatever the layers of this step share (indices, splits, gathered cos/sin), made once per step.

        `cos_sin` is the table of all positions, float32 (float64 for a float64 model)
        ``(max positions, D)``: D/2 cosines, then D/2 sines.
        """

    def embed(self, input_ids: Tensor, table: Tensor) -> Tensor:
        """Rows of the embedding table ``(V, H)`` in the compute dtype: a new tensor ``(T, H)``."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis; `x` is left as it is."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``(rms_norm(x + residual), x + residual)``, both ``(T, H)``; may overwrite `x` and `residual`."""

    def linear(self, x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
        """``x @ weight.T + bias`` with a packed weight: ``(T, out)``."""

    def qk_norm(self, q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """RMSNorm of each head of `q` ``(T, Hq, D)`` and `k` ``(T, Hkv, D)``, which lie in one row of QKV: in place."""

    def rope(self, q: Tensor, k: Tensor, prepared: Any) -> tuple[Tensor, Tensor]:
        """Rotary embedding of `q` ``(T, Hq, D)`` and `k` ``(T, Hkv, D)`` at the positions; k lies behind q in each row.

        First half of a head rotates with its second half (GPT-NeoX order, as Llama checkpoints in HF format have it).
        """

    def write_kv(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, prepared: Any) -> None:
        """Write ``(T, Hkv, D)`` rows to one layer's ``(num_blocks, block_size, Hkv, D)`` at the slot mapping."""

    def attention(self, q: Tensor, keys: Tensor, values: Tensor, prepared: Any, scale: float) -> Tensor:
        """Causal attention of `q` ``(T, Hq, D)`` over one layer's cache: ``(T, Hq * D)``, finite in padding rows."""

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """``silu(gate) * up`` of ``(T, 2 * I)`` rows, gate first: ``(T, I)``."""

    def rows(self, x: Tensor, indices: Tensor) -> Tensor:
        """Rows `indices` of `x`: ``(L, H)``."""


OPS = ("torch", "triton")


def make_ops(name: str, device: str = "cpu") -> Ops:
    """The operations by name; ``auto`` is ``triton`` on CUDA and ``torch`` elsewhere. Raises ConfigError.

    ``triton`` off a GPU works only in Triton's interpreter (``TRITON_INTERPRET=1``).
    """
    chosen = ("triton" if device.startswith("cuda") else "torch") if name == "auto" else name
    if chosen == "torch":
        from .torch_ops import TorchOps

        return TorchOps()
    if chosen != "triton":
        raise unknown_name("ops", name, ("auto", *OPS))
    _check_triton(device)
    from .triton_ops import TritonOps

    return TritonOps()


def _check_triton(device: str) -> None:
    import os

    if not device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(f"ops 'triton' needs a GPU, or TRITON_INTERPRET=1 in the environment; the device is {device}")
