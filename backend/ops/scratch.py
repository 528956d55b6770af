"""Buffers that live from step to step, so that large results do not fault in new pages in every layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Scratch:
    """Named buffers of one device, grown when a step needs more; asked for again, a buffer has lost its contents."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer of that shape; contents undefined."""
        count = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count or buffer.dtype != dtype or buffer.device != device:
            # an eighth more, so that contexts that grow by a token a step do not ask for a new one each time
            with torch.inference_mode(False):  # a buffer made in inference mode could not be used out of it
                buffer = torch.empty(count + count // 8, dtype=dtype, device=device)
            self._buffers[name] = buffer
        return buffer[:count].view(shape)
