"""The paged KV cache of all layers: two tensors, addressed by slot (block * block_size + offset)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .model_config import ModelConfig


class KvCache:
    """Keys and values of every layer, ``(num_layers, num_blocks, block_size, num_kv_heads, head_dim)`` each.

    Zeroed at the start: block 0, the null block, is read (and masked) where block tables are filled up with it, and a
    softmax weight of 0 times a number that is not finite would be no zero.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.keys: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.values: Tensor = torch.zeros(shape, dtype=dtype, device=device)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Views of one layer's keys and values, ``(num_blocks, block_size, num_kv_heads, head_dim)``."""
        return self.keys[index], self.values[index]

    @staticmethod
    def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
        """Bytes that one block takes, over all layers, keys and values."""
        return 2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize
