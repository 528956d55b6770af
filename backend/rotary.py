"""The table of the rotary embedding: cosines and sines of every position, llama3's frequency scaling included."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .model_config import Llama3Scaling, RopeConfig


def cos_sin_table(rope: RopeConfig, head_dim: int, max_positions: int, dtype: torch.dtype) -> Tensor:
    """Cosines (first half) and sines (second) of every position: ``(max_positions, head_dim)``.

    Frequencies and angles are rounded to float32 first, whatever `dtype` is, as transformers does: the rounding of an
    angle at position 10,000 (5e-4) is far above the tolerances that logits are compared with.
    """
    positions = torch.arange(max_positions, dtype=torch.float32)
    angles = positions[:, None] * frequencies(rope, head_dim)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)


def frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions, ``(head_dim / 2,)``: ``theta^(-2i / head_dim)``, then scaled."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    return plain if rope.scaling is None else _llama3(plain, rope.scaling)


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Low frequencies divided by `factor`, high ones kept, a linear blend between.

    From Meta's Llama 3.1 reference (`apply_scaling` of llama_models), as transformers' `_compute_llama3_parameters`.
    """
    turns = scaling.original_max_positions / (2 * math.pi / plain)  # in the original context
    slow = plain / scaling.factor
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    middle = (1 - blend) * slow + blend * plain
    scaled = torch.where(turns < scaling.low_freq_factor, slow, middle)
    return torch.where(turns > scaling.high_freq_factor, plain, scaled)
