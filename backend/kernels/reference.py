"""What each kernel computes, in plain torch and float32 (float64 where it draws): the peers of tests and benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor

from scheduler.batch import NO_SLOT, PAD_TOKEN

from .attention import RaggedBatch
from .prepare import StepTensors


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis, rounded to the type of `x` before the weights."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``(rms_norm(x + residual), x + residual)``."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of ``(T, heads, D)``, first half of a head with its second."""
    cos, sin = cos_sin[positions][:, None].float().chunk(2, dim=-1)
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``, gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def write_kv(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
    """Write rows into the cache where the slot mapping is not below 0."""
    written = slot_mapping >= 0
    for rows, cache in ((k, keys), (v, values)):
        cache.view(-1, *cache.shape[2:])[slot_mapping[written]] = rows[written]


def attention(q: Tensor, keys: Tensor, values: Tensor, batch: RaggedBatch, scale: float) -> Tensor:
    """Causal attention request by request, in float32; zeros in padding rows."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    starts, seq_lens = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    for request, seq_len in enumerate(seq_lens):
        rows = slice(starts[request], starts[request + 1])
        row = request if batch.slots is None else int(batch.slots[request])
        blocks = batch.block_table[row].long()
        k, v = (cache[blocks].flatten(0, 1)[:seq_len].float() for cache in (keys, values))
        out[rows] = _attended(q[rows].float(), k, v, scale).to(q.dtype)
    return out.flatten(1)


def _attended(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of the last queries ``(n, Hq, D)`` of a sequence over its K/V ``(S, Hkv, D)``."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("nhd,shd->hns", q, k) * scale
    future = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(k.shape[0] - q.shape[0] + 1)
    return torch.einsum("hns,shd->nhd", scores.masked_fill(future, float("-inf")).softmax(-1), v)


def prepare_step(
    slots: Tensor, computed: Tensor, query_start_loc: Tensor, token_table: Tensor, block_table: Tensor,
    block_size: int, out: StepTensors,
) -> None:  # fmt: skip
    """A flat step's index tensors."""
    requests = len(out.seq_lens)
    starts = query_start_loc[: requests + 1].long()
    lens = starts.diff()
    owner = torch.arange(requests, device=starts.device).repeat_interleave(lens)
    real = len(owner)
    positions = torch.arange(real, device=starts.device) - starts[owner] + computed[owner]
    seats = slots[owner].long()
    blocks = block_table[seats, positions // block_size].long()
    for tensor, values, fill in (
        (out.input_ids, token_table[seats, positions], PAD_TOKEN),
        (out.positions, positions, 0),
        (out.slot_mapping, blocks * block_size + positions % block_size, NO_SLOT),
    ):
        tensor[:real] = values
        tensor[real:] = fill
    out.seq_lens.copy_(torch.where(lens > 0, computed + lens, 0))
    out.logits_indices.copy_(starts[1:] - 1)


def scatter(table: Tensor, rows: Tensor, cols: Tensor, values: Tensor) -> None:
    """``table[rows, cols] = values`` where the column is not below 0."""
    written = cols >= 0
    table[rows[written].long(), cols[written].long()] = values[written].to(table.dtype)


def cumulative(logits: Tensor, temperature: Tensor) -> Tensor:
    """Cumulative probabilities ``(N, V)`` of filtered logits in vocabulary order, float64: what `sample` inverts."""
    return torch.softmax(logits.double() / temperature.double()[:, None], dim=-1).cumsum(-1)


def sample(logits: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds `uniform`, or the first of the largest at temperature 0."""
    greedy = temperature == 0
    cdf = cumulative(logits, torch.where(greedy, 1.0, temperature))
    drawn = torch.searchsorted(cdf, uniform.double()[:, None], right=True)[:, 0]
    possible = torch.where(logits > float("-inf"), torch.arange(logits.shape[1], device=logits.device), 0)
    return torch.where(greedy, logits.argmax(-1), torch.minimum(drawn, possible.amax(-1)))
