"""Each torch operation equals its formula, whatever the shape of the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from backend.kv_cache import KvCache
from backend.model_config import ModelConfig, RopeConfig
from backend.ops import make_ops
from backend.ops.packed_linear import PackedLinear, cpu_compute_dtype
from backend.ops.scratch import Scratch
from backend.ops.torch_attention import GROUP_OVERHEAD, attend, group_sizes, plan_attention
from backend.ops.torch_ops import TorchOps
from backend.rotary import cos_sin_table
from scheduler.batch import BatchRequest, flat_batch, padded_batch
from scheduler.errors import ConfigError

from .families import FAMILIES, flat_inputs, padded_inputs


def config(heads: int = 4, kv_heads: int = 2, head_dim: int = 8) -> ModelConfig:
    from transformers import LlamaConfig

    return ModelConfig.of(
        LlamaConfig(
            num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, hidden_size=32,
            num_hidden_layers=1, vocab_size=50, max_position_embeddings=128,
        )
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_is_its_formula(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 48, dtype=dtype), torch.randn(48, dtype=dtype)
    kept = x.clone()
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    found = TorchOps().rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=20 * torch.finfo(dtype).eps)
    assert torch.equal(x, kept)


def test_add_rms_norm_is_the_norm_of_the_sum() -> None:
    x, residual, weight = torch.randn(3, 6, 32, dtype=torch.float64).unbind()
    weight, total = weight[0], x + residual
    normed, kept = TorchOps().add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(kept, total)
    torch.testing.assert_close(normed, F.rms_norm(total, (32,), weight, 1e-6))


def test_silu_and_mul_takes_the_gate_first() -> None:
    gate_up = torch.randn(7, 24, dtype=torch.float64)
    expected = F.silu(gate_up[:, :12]) * gate_up[:, 12:]
    torch.testing.assert_close(TorchOps().silu_and_mul(gate_up.clone()), expected)


def prepared(ops: TorchOps, facts: ModelConfig, positions: list[int], slots: list[int]) -> Any:
    """A step of one request with those positions and slots."""
    count = len(positions)
    batch = flat_batch([BatchRequest("a", list(range(count)), 0, count, list(range(1, count + 1)))], 1)
    inputs = flat_inputs(batch)
    inputs.positions, inputs.slot_mapping = torch.tensor(positions), torch.tensor(slots)
    table = cos_sin_table(RopeConfig(10000.0), facts.head_dim, 128, torch.float64)
    return ops.prepare(inputs, KvCache(facts, 40, 1, torch.float64, "cpu"), facts, table)


def test_rope_is_transformers_and_leaves_v_alone() -> None:
    facts, ops = config(), TorchOps()
    qkv = torch.randn(3, 8, 8, dtype=torch.float64)
    positions = [5, 0, 99]
    angles = cos_sin_table(RopeConfig(10000.0), 8, 128, torch.float64)[positions]
    cos, sin = (part.repeat(1, 2)[None] for part in angles.chunk(2, dim=-1))
    q, k = qkv[None, :, :4].transpose(1, 2), qkv[None, :, 4:6].transpose(1, 2)
    expected = [x[0].transpose(0, 1) for x in apply_rotary_pos_emb(q, k, cos, sin)]
    v = qkv[:, 6:].clone()
    ops.compute_dtype(torch.float64, torch.device("cpu"))
    found = ops.rope(qkv[:, :4], qkv[:, 4:6], prepared(ops, facts, positions, [0, 1, 2]))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert torch.equal(qkv[:, 6:], v)


def test_kv_is_written_where_the_slots_say_and_nowhere_else() -> None:
    facts, ops = config(), TorchOps()
    k, v = torch.randn(2, 4, 2, 8, dtype=torch.float64).unbind()
    cache = KvCache(facts, 5, 4, torch.float64, "cpu")
    ops.write_kv(k, v, *cache.layer(0), prepared(ops, facts, [0, 1, 2, 3], [6, -1, 4, -1]))
    flat = cache.keys[0].flatten(0, 1)
    assert torch.equal(flat[6], k[0])
    assert torch.equal(flat[4], k[2])
    assert torch.equal(cache.values[0].flatten(0, 1)[6], v[0])
    assert flat.flatten(1).any(dim=1).nonzero().view(-1).tolist() == [4, 6]


def dense_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The textbook's: the last ``len(q)`` rows of causal attention over ``len(k)`` positions, ``(queries, Hq, D)``."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * 0.25
    last = torch.arange(len(k) - len(q), len(k))
    scores.masked_fill_(torch.arange(len(k)) > last[:, None], -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kv_heads=st.sampled_from([1, 2, 4]), block_size=st.sampled_from([1, 3, 8, 16]))
def test_attention_over_scattered_blocks_is_the_textbooks(data: Any, kv_heads: int, block_size: int) -> None:
    chunk = st.tuples(st.integers(0, 70), st.integers(1, 9))
    chunks = data.draw(st.lists(chunk | st.tuples(st.integers(0, 90), st.just(1)), min_size=1, max_size=8))
    padding = data.draw(st.sampled_from([0, 3]))
    facts = config(kv_heads=kv_heads)
    needs = [-(-(computed + new) // block_size) for computed, new in chunks]
    ids = np.random.default_rng(0).permutation(np.arange(1, sum(needs) + 1)).tolist()
    tables = [[ids.pop() for _ in range(need)] for need in needs]
    batch = flat_batch(
        [BatchRequest("r", [0] * (c + n), c, n, t) for (c, n), t in zip(chunks, tables, strict=True)], block_size,
        padded_to=sum(n for _, n in chunks) + padding,
    )  # fmt: skip
    cache = KvCache(facts, sum(needs) + 1, block_size, torch.float64, "cpu")
    cache.keys.normal_()
    cache.values.normal_()
    q = torch.randn(len(batch.positions), 4, 8, dtype=torch.float64)
    plan = plan_attention(flat_inputs(batch), cache, 4, torch.float64, Scratch())
    found = attend(q, *cache.layer(0), plan, 0.25)
    start = 0
    for (computed, new), table in zip(chunks, tables, strict=True):
        k, v = (x[table].flatten(0, 1)[: computed + new] for x in cache.layer(0))
        expected = dense_attention(q[start : start + new], k, v).flatten(1)
        torch.testing.assert_close(found[start : start + new], expected, atol=1e-13, rtol=0)
        start += new
    assert not found[start:].any()


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_cell_of_a_rectangle_is_finite_and_its_tokens_are_the_textbooks(side: Any) -> None:
    facts = config()
    requests = [BatchRequest("a", [0] * 9, 3, 6, [3, 1, 7], pad=2), BatchRequest("b", [0] * 4, 0, 2, [5, 2])]
    batch = padded_batch(requests, 4, padding_side=side)
    cache = KvCache(facts, 8, 4, torch.float64, "cpu")
    cache.keys.normal_()
    cache.values.normal_()
    q = torch.randn(12, 4, 8, dtype=torch.float64)
    found = attend(q, *cache.layer(0), plan_attention(padded_inputs(batch), cache, 4, torch.float64, Scratch()), 0.25)
    assert found.isfinite().all()
    for row, request in enumerate(requests):
        cells = np.flatnonzero(batch.is_token[row]) + row * 6
        first, length = int(batch.kv_start[row]), int(batch.seq_lens[row])
        k, v = (x[request.block_table].flatten(0, 1)[first : first + length] for x in cache.layer(0))
        torch.testing.assert_close(found[cells], dense_attention(q[cells], k, v).flatten(1), atol=1e-13, rtol=0)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=64).map(sorted))
def test_groups_take_everybody_and_pad_little(blocks: list[int]) -> None:
    sizes = group_sizes(blocks, 16)
    assert sum(sizes) == len(blocks)
    first = 0
    for size in sizes:
        group = blocks[first : first + size]
        assert sum(group[-1] - count for count in group) * 16 <= GROUP_OVERHEAD
        first += size


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(640, 512), (512, 640), (8, 4)])
@pytest.mark.parametrize("rows", [1, 5, 300])
@pytest.mark.parametrize("biased", [True, False])
def test_a_packed_linear_layer_is_the_product(
    dtype: torch.dtype, shape: tuple[int, int], rows: int, biased: bool
) -> None:
    weight, x = torch.randn(shape).to(dtype), torch.randn(rows, shape[1]).to(dtype)
    bias = torch.randn(shape[0]).to(dtype) if biased else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = PackedLinear(weight)(x, bias)
    assert found.dtype == dtype
    magnitude = F.linear(x.double().abs(), weight.double().abs(), None if bias is None else bias.double().abs())
    assert ((found.double() - exact).abs() <= 8 * torch.finfo(dtype).eps * magnitude).all()


def test_float_types_with_instructions_of_their_own_compute_as_they_are() -> None:
    assert cpu_compute_dtype(torch.float32) == torch.float32
    assert cpu_compute_dtype(torch.float64) == torch.float64
    assert cpu_compute_dtype(torch.bfloat16) in (torch.bfloat16, torch.float32)


def test_scratch_grows_and_is_shared_by_name() -> None:
    scratch, cpu = Scratch(), torch.device("cpu")
    small = scratch.take("a", (4, 4), torch.float32, cpu)
    assert scratch.take("a", (2, 8), torch.float32, cpu).data_ptr() == small.data_ptr()
    assert scratch.take("b", (4, 4), torch.float32, cpu).data_ptr() != small.data_ptr()
    assert scratch.take("a", (40, 4), torch.float32, cpu).shape == (40, 4)
    assert scratch.take("a", (4,), torch.float64, cpu).dtype == torch.float64


def test_ops_are_made_by_name() -> None:
    assert make_ops("auto").name == make_ops("torch", "cuda").name == "torch"
    with pytest.raises(ConfigError, match=r"unknown ops 'tritn' \(did you mean 'triton'\?\)"):
        make_ops("tritn")


def test_triton_off_a_gpu_asks_for_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        make_ops("triton")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_takes_the_bytes_that_the_cache_has_per_block(family: str) -> None:
    facts = ModelConfig.of(FAMILIES[family]().config)
    cache = KvCache(facts, 10, 16, torch.float16, "cpu")
    assert KvCache.bytes_per_block(facts, 16, torch.float16) == (cache.keys.nbytes + cache.values.nbytes) // 10
