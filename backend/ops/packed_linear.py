"""Linear layers on the CPU: in which dtype to multiply, and weights laid out for it in advance."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

ROWS_HINT = 256
"""Rows that oneDNN lays a weight out for: measured as good at 1 to 64 rows as any other hint."""
SMALLEST_PACKED = 1 << 17
"""Weights with fewer elements stay as they are: the call's own cost outweighs the gain."""


def cpu_compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a CPU multiplies weights of `dtype` fastest.

    A CPU without instructions for a half type emulates it: a product in bfloat16 then takes 6 to 8 times as long as in
    float32 (AVX2, one thread). There half weights are kept in float32, at twice the memory; K/V stays half.
    """
    if dtype == torch.bfloat16:
        return dtype if _has("_is_avx512_bf16_supported", "_is_amx_tile_supported") else torch.float32
    if dtype == torch.float16:
        return dtype if _has("_is_amx_fp16_supported") else torch.float32
    return dtype


def _has(*features: str) -> bool:
    return any(getattr(torch.cpu, feature, bool)() for feature in features)


class PackedLinear:
    """A linear weight ``(out, in)``, held in oneDNN's blocked layout where that is faster than plain rows.

    That is so for float32 weights that widen (QKV, gate and up, the LM head): measured 1.1 to 2 times as fast at 1 to
    64 rows, equal beyond; those that narrow are as fast plain. Half types gain always, as plain ones are laid out anew
    in each call.
    """

    __slots__ = ("_blocked", "_plain")

    def __init__(self, weight: Tensor) -> None:
        blocked = _blocked(weight) if _worth_packing(weight) else None
        self._blocked = blocked
        self._plain = weight if blocked is None else None

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ weight.T + bias``."""
        if self._plain is not None:
            return F.linear(x, self._plain, bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._blocked, bias, "none", [], "")
        return product


def _worth_packing(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or weight.numel() < SMALLEST_PACKED or not _can_pack(weight.dtype):
        return False
    return weight.dtype != torch.float32 or weight.shape[0] > weight.shape[1]


def _blocked(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
    return packed


@functools.cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch can: these operators are its compiler's own, and no promise is made about them."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16) or not torch._C._has_mkldnn:
        return False
    x, weight = torch.ones(2, 32, dtype=dtype), torch.eye(32, dtype=dtype)
    try:
        product = torch.ops.mkldnn._linear_pointwise(x, _blocked(weight), None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool(torch.equal(product, x))
