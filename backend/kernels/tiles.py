"""Which tile sizes and warps a launch takes: plain functions of shape, type and target, the shipped configurations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]  # triton ships no type information

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter (``TRITON_INTERPRET=1`` when triton was first imported)."""

ROW_BLOCK = 1024
"""Elements of a row that a program of an element-wise kernel takes."""
VOCAB_BLOCK = 4096
"""Logits that the sampler looks at in one turn of its loop."""
SPLIT_KEYS = 256
"""Fewest KV positions worth a split of their own: less does not pay for the reduction."""
MAX_SPLITS = 32
"""Most splits of one context; the reduction holds them all in one tile."""
SPLIT_WAVES = 2
"""Programs per processor that splitting aims at."""
PROCESSORS_UNKNOWN = 108
"""Processors assumed where no device can be asked (interpreter, compilation alone): those of an A100."""


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU as a compiler sees it.

    Attributes:
        backend: ``cuda`` or ``hip``.
        arch: compute capability times 10; 0 for hip.
    """

    backend: str
    arch: int

    @property
    def warp_groups(self) -> bool:
        """Whether matrix products take their operands from shared memory (Hopper's wgmma, Blackwell's tcgen05)."""
        return self.backend == "cuda" and 90 <= self.arch < 120


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """Tile of the attention kernel.

    Attributes:
        rows: query rows, (tokens x query heads of one KV head) packed.
        keys: KV positions a turn.
        num_warps, num_stages: Triton's.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def power_of_two(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << max(size - 1, 0).bit_length()


def warps(elements: int) -> int:
    """Warps for a program that holds so many elements: 16 a thread, 1 to 16 warps."""
    return min(max(power_of_two(elements) // 512, 1), 16)


def target() -> Target:
    """Whose code a launch compiles to; an A100's in the interpreter, which does not care."""
    if INTERPRETED:
        return Target("cuda", 80)
    current = triton.runtime.driver.active.get_current_target()
    return Target(current.backend, current.arch if current.backend == "cuda" else 0)


def attention_tiles(
    head_dim: int, dtype: torch.dtype, group: int, max_query_len: int, target: Target
) -> AttentionTiles:
    """The attention kernel's tile.

    Decodes are bound by memory: the fewest rows that a matrix unit takes (16), and many keys in flight. Prefill chunks
    are bound by arithmetic: many rows share each key read; how many warps they take follows from the registers that
    are left (``benchmarks/kernel_builds.py``). float32 has no exact matrix unit: its products are spread over
    registers, so its tiles are small.

    Args:
        head_dim: D.
        dtype: of queries and cache.
        group: query heads per KV head.
        max_query_len: longest chunk of the step.
        target: whose code it becomes.
    """
    wide = head_dim > 64
    least = max(16, power_of_two(group))
    if dtype == torch.float32:
        return AttentionTiles(least, 32 if wide else 64, 8, 1)
    stages = 2 if target.backend == "hip" else 3
    if max_query_len * group <= 16:
        return AttentionTiles(16, 64 if wide else 128, 4, stages)
    few_warps = target.backend == "hip" or target.warp_groups
    return AttentionTiles(max(64, least), 64, 4 if few_warps else 8, stages)


def attention_splits(programs: int, max_seq_len: int, processors: int) -> int:
    """Into how many parts each context is split, a power of two: enough programs to fill the device, or 1.

    Args:
        programs: programs without splitting.
        max_seq_len: longest context.
        processors: of the device.
    """
    wanted = SPLIT_WAVES * processors // programs
    most = min(wanted, max_seq_len // SPLIT_KEYS, MAX_SPLITS)
    return 1 if most < 2 else 1 << (most.bit_length() - 1)


def processors(device: torch.device) -> int:
    """Multiprocessors (compute units) of a device."""
    if device.type != "cuda":
        return PROCESSORS_UNKNOWN
    return torch.cuda.get_device_properties(device).multi_processor_count
