"""The next token of each row: the largest logit, or one drawn with noise that depends on (seed, position) alone."""
# Triton's language is not typed Python, and its compile-time parameters are upper case:
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import VOCAB_BLOCK, power_of_two, warps


@triton.jit
def _uniform(seed, position):
    """A float32 in [0, 1) with 24 random bits: Philox-4x32-10 with key `seed` and counter ``(position, 0, 0, 0)``."""
    word, _, _, _ = tl.randint4x(seed, position)
    return (word.to(tl.uint32, bitcast=True) >> 8).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _weights(row_ptr, start, largest, temperature, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Unnormalised probabilities of a block of the vocabulary."""
    cols = start + tl.arange(0, BLOCK)
    logits = tl.load(row_ptr + cols, mask=cols < SIZE, other=float("-inf")).to(tl.float32)
    return tl.exp((logits - largest) / temperature)


@triton.jit
def _greedy(row_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit and the first index that has it."""
    largest = tl.full((), float("-inf"), tl.float32)
    token = tl.full((), 0, tl.int32)
    for start in range(0, SIZE, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        logits = tl.load(row_ptr + cols, mask=cols < SIZE, other=float("-inf")).to(tl.float32)
        best = tl.max(logits, axis=0)
        first = tl.min(tl.where(logits == best, cols, SIZE - 1), axis=0)
        token = tl.where(best > largest, first, token)
        largest = tl.maximum(largest, best)
    return largest, token


@triton.jit
def _draw(row_ptr, uniform, largest, temperature, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The first token at which the cumulative probability exceeds `uniform`, in vocabulary order."""
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, SIZE, BLOCK):
        total += tl.sum(_weights(row_ptr, start, largest, temperature, SIZE, BLOCK), axis=0)
    target = uniform * total
    below = tl.full((), 0.0, tl.float32)
    token = tl.full((), -1, tl.int32)
    found = tl.full((), 0, tl.int32)
    for start in range(0, SIZE, BLOCK):
        weights = _weights(row_ptr, start, largest, temperature, SIZE, BLOCK)
        cols = start + tl.arange(0, BLOCK)
        possible = weights > 0.0
        # where rounding lets no cumulative sum exceed the target, the last possible token so far stands
        last = tl.max(tl.where(possible, cols, -1), axis=0)
        crossing = tl.min(tl.where(possible & (below + tl.cumsum(weights, axis=0) > target), cols, SIZE), axis=0)
        candidate = tl.where(crossing < SIZE, crossing, tl.where(last >= 0, last, token))
        token = tl.where(found == 0, candidate, token)
        below += tl.sum(weights, axis=0)
        found = tl.where((crossing < SIZE) | (below > target), 1, found)
    return token


@triton.jit
def _sample_kernel(
    logits_ptr, temperature_ptr, seeds_ptr, positions_ptr, out_ptr, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a row; temperature 0 is greedy."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride
    largest, token = _greedy(row_ptr, SIZE, BLOCK)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0.0:
        uniform = _uniform(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
        token = _draw(row_ptr, uniform, largest, temperature, SIZE, BLOCK)
    tl.store(out_ptr + row, token.to(tl.int64))


@triton.jit
def _argmax_kernel(logits_ptr, out_ptr, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    _, token = _greedy(logits_ptr + row * stride, SIZE, BLOCK)
    tl.store(out_ptr + row, token.to(tl.int64))


@triton.jit(do_not_specialize=["count"])
def _uniform_kernel(seeds_ptr, positions_ptr, out_ptr, count, BLOCK: tl.constexpr):
    items = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = items < count
    seeds = tl.load(seeds_ptr + items, mask=inside, other=0)
    positions = tl.load(positions_ptr + items, mask=inside, other=0)
    tl.store(out_ptr + items, _uniform(seeds, positions), mask=inside)


def argmax(logits: Tensor) -> Tensor:
    """Index of each row's largest logit, the first one on ties: int64 ``(N,)`` from ``(N, V)``."""
    rows, size = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = _block(size)
    _argmax_kernel[(rows,)](logits, out, logits.stride(0), SIZE=size, BLOCK=block, num_warps=warps(block))
    return out


def sample(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """One token a row, int64 ``(N,)``; rows do not see each other.

    With weights ``exp((logit - largest) / temperature)`` in float32: the first token, in vocabulary order, whose
    cumulative weight exceeds ``uniform(seed, position) * total``. A logit of -inf is never drawn.

    Args:
        logits: filtered already (top-k and so on set others to -inf), ``(N, V)``.
        temperature: float32 ``(N,)``; 0: greedy.
        seeds: int64 ``(N,)``, all 64 bits count.
        positions: of the token to be sampled, int64 ``(N,)``.
    """
    rows, size = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = _block(size)
    _sample_kernel[(rows,)](
        logits, temperature, seeds, positions, out, logits.stride(0), SIZE=size, BLOCK=block, num_warps=warps(block)
    )
    return out


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """The number that `sample` draws with: float32 ``(N,)`` in [0, 1), of int64 `seeds` and `positions` ``(N,)``."""
    out = torch.empty(len(seeds), dtype=torch.float32, device=seeds.device)
    _uniform_kernel[(triton.cdiv(len(seeds), 256),)](seeds, positions, out, len(seeds), BLOCK=256, num_warps=1)
    return out


def _block(size: int) -> int:
    return min(power_of_two(size), VOCAB_BLOCK)
