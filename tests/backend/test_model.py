"""The model gives transformers' logits, for every family, however requests are batched, chunked and padded."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

import backend.ops.torch_ops
from backend.model import Model
from backend.ops.base import FlatAttention

from .families import FAMILIES, Sequences, flat_inputs, ours, random_tokens, reference, their_logits

LENGTHS = (30, 1, 17, 44)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@functools.cache
def theirs(family: str, dtype: torch.dtype = torch.float32) -> Any:
    return reference(family, dtype)


@functools.cache
def model(family: str, dtype: torch.dtype = torch.float32) -> Model:
    return ours(theirs(family, dtype), dtype)


@pytest.fixture
def exact_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers normalises in float32 even in a float64 model; here it is to be exact."""

    def forward(self: Any, x: Tensor) -> Tensor:
        normed: Tensor = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
        return normed

    for norm in (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm):
        monkeypatch.setattr(norm, "forward", forward)


def run_mixed(sequences: Sequences) -> list[Tensor]:
    """Chunked prefills, decodes and a whole prompt mixed, requests joining late; logits after every token."""
    steps = [
        ({0: 7, 1: 1}, None), ({0: 1, 2: 16}, 24), ({3: 20, 0: 13, 2: 1}, None), ({3: 13, 0: 1}, 17),
        ({0: 8, 3: 1}, None), ({3: 10}, 16),
    ]  # fmt: skip
    found: list[list[Tensor]] = [[] for _ in LENGTHS]
    for scheduled, padded_to in steps:
        for index, logits in sequences.step(scheduled, padded_to=padded_to).items():
            found[index].append(logits)
    assert sequences.computed == list(LENGTHS)
    return [torch.cat(chunks) for chunks in found]


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_are_within_1e_4_of_transformers(family: str) -> None:
    sequences = Sequences(model(family), random_tokens(*LENGTHS))
    for tokens, logits in zip(sequences.tokens, run_mixed(sequences), strict=True):
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, their_logits(theirs(family), tokens), atol=1e-4, rtol=0)


@pytest.mark.usefixtures("exact_norms")
@pytest.mark.parametrize("family", FAMILIES)
def test_float64_logits_are_within_1e_10_of_transformers(family: str) -> None:
    sequences = Sequences(model(family, torch.float64), random_tokens(*LENGTHS))
    for tokens, logits in zip(sequences.tokens, run_mixed(sequences), strict=True):
        assert logits.dtype == torch.float64
        torch.testing.assert_close(logits, their_logits(theirs(family, torch.float64), tokens), atol=1e-10, rtol=0)


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("native", [True, False])
def test_half_types_are_about_as_near_to_float64_as_transformers_are(
    family: str, dtype: torch.dtype, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native:  # what a CPU with half-type instructions runs; this one may have none
        monkeypatch.setattr(backend.ops.torch_ops, "cpu_compute_dtype", lambda dtype: dtype)
    half = ours(theirs(family), dtype)
    assert half.dtype == (dtype if native else half.dtype)
    sequences = Sequences(half, random_tokens(*LENGTHS), cache_dtype=dtype)
    tokens = sequences.tokens[3]
    exact = their_logits(theirs(family, torch.float64), tokens)
    theirs_off = (their_logits(reference(family, dtype), tokens).double() - exact).abs().mean()
    ours_off = (run_mixed(sequences)[3].double() - exact).abs().mean()
    assert ours_off <= 1.5 * theirs_off


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_a_padded_rectangle_gives_the_same_logits(family: str, side: str) -> None:
    tokens = random_tokens(12, 5, 9)
    sequences = Sequences(model(family), tokens)
    prompts = {0: 8, 1: 1, 2: 5}
    pads = {index: 8 - count for index, count in prompts.items()} if side == "left" else {}
    exact = [their_logits(theirs(family), row) for row in tokens]
    for scheduled in (prompts, {0: 1, 1: 1, 2: 1}, {0: 3, 1: 1, 2: 2}):
        for index, logits in sequences.rectangle(scheduled, pads, side).items():
            last = sequences.computed[index] - 1
            torch.testing.assert_close(logits[0], exact[index][last], atol=1e-4, rtol=0)


def test_a_chunk_at_any_place_of_any_length_gives_the_same_logits() -> None:
    tokens = random_tokens(40)
    whole = Sequences(model("llama3", torch.float64), tokens).step({0: 40})[0]

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.integers(1, 13), min_size=1, max_size=40), st.sampled_from([1, 3, 16]))
    def check(chunks: list[int], block_size: int) -> None:
        sequences = Sequences(model("llama3", torch.float64), tokens, block_size)
        found = [sequences.step({0: count})[0] for count in chunks if sum(sequences.computed) + count <= 40]
        logits = torch.cat(found)
        torch.testing.assert_close(logits, whole[: len(logits)], atol=1e-12, rtol=0)

    check()


def test_logits_do_not_depend_on_who_else_is_in_the_batch() -> None:
    tokens = random_tokens(33, 20, 2, 50)
    together = Sequences(model("qwen3", torch.float64), tokens)
    alone = [Sequences(model("qwen3", torch.float64), [row]) for row in tokens]
    for scheduled in ({0: 32, 1: 5}, {0: 1, 1: 14, 2: 1, 3: 49}, {3: 1, 2: 1, 1: 1}):
        for index, logits in together.step(scheduled, padded_to=96).items():
            torch.testing.assert_close(logits, alone[index].step({0: scheduled[index]})[0], atol=1e-12, rtol=0)


def test_many_decodes_of_uneven_length_equal_each_alone() -> None:
    lengths = [3, 300, 5, 290, 120, 4, 119, 121, 64, 65, 63, 16]
    tokens = random_tokens(*lengths)
    sequences = Sequences(model("llama3"), tokens, block_size=16)
    sequences.step({index: length - 1 for index, length in enumerate(lengths) if length > 1})
    for index, logits in sequences.step(dict.fromkeys(range(len(lengths)), 1)).items():
        torch.testing.assert_close(logits[0], their_logits(theirs("llama3"), tokens[index])[-1], atol=1e-4, rtol=0)


def test_padding_rows_leave_the_cache_and_the_null_block_alone() -> None:
    tokens = random_tokens(9)
    plain, padded = Sequences(model("llama2"), tokens), Sequences(model("llama2"), tokens)
    plain.step({0: 9})
    padded.step({0: 9}, padded_to=32)
    torch.testing.assert_close(plain.cache.keys, padded.cache.keys, atol=1e-6, rtol=0)
    torch.testing.assert_close(plain.cache.values, padded.cache.values, atol=1e-6, rtol=0)
    assert not padded.cache.keys[:, 0].any()
    assert not padded.cache.values[:, 0].any()


def test_stale_contents_of_blocks_do_not_reach_a_request() -> None:
    tokens = random_tokens(10, 30)
    fresh, used = Sequences(model("llama3"), tokens), Sequences(model("llama3"), tokens)
    for cache in (used.cache.keys, used.cache.values):
        cache[:, 1:].normal_()
    for scheduled in ({0: 9}, {0: 1, 1: 29}, {1: 1}):
        for index, logits in used.step(scheduled).items():
            torch.testing.assert_close(logits, fresh.step({index: scheduled[index]})[index], atol=1e-5, rtol=0)


def test_logits_come_only_for_the_rows_asked_for() -> None:
    from scheduler.batch import BatchRequest, flat_batch

    tokens = random_tokens(6, 4)
    sequences = Sequences(model("llama2"), tokens)
    requests = [BatchRequest(str(i), row, 0, len(row), sequences.tables[i]) for i, row in enumerate(tokens)]
    inputs = flat_inputs(flat_batch(requests, 4))
    assert isinstance(inputs.attention, FlatAttention)
    logits = sequences.model.forward(inputs, sequences.cache)
    assert logits.shape == (2, sequences.model.config.vocab_size)
    torch.testing.assert_close(logits[1], their_logits(theirs("llama2"), tokens[1])[-1], atol=1e-4, rtol=0)


def test_positions_end_where_the_model_is_told() -> None:
    shorter = Model(model("llama2").config, _weights("llama2"), backend.ops.torch_ops.TorchOps(), max_positions=20)
    assert shorter.cos_sin.shape == (20, 16)


def _weights(family: str) -> Any:
    from backend.weights import from_state_dict

    return from_state_dict(theirs(family).state_dict(), model(family).config, torch.float32, "cpu")


def test_a_model_wide_enough_for_packed_weights_is_within_1e_4_too() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    wide: Any = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=384, intermediate_size=768, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
            vocab_size=600, max_position_embeddings=512,
        )
    )  # fmt: skip
    wide.eval()
    sequences = Sequences(ours(wide), random_tokens(*LENGTHS), block_size=16)
    for tokens, logits in zip(sequences.tokens, run_mixed(sequences), strict=True):
        torch.testing.assert_close(logits, their_logits(wide, tokens), atol=1e-4, rtol=0)
