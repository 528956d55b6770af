"""Small random models of every family, by transformers, and what this project makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)  # fmt: skip

from backend.kv_cache import KvCache
from backend.model import Model
from backend.model_config import ModelConfig
from backend.ops import FlatAttention, PaddedAttention, StepInputs, make_ops
from backend.weights import from_state_dict
from scheduler.batch import BatchRequest, FlatBatch, PaddedBatch, flat_batch, padded_batch

SIZES: dict[str, Any] = {
    "vocab_size": 331, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 512,
}  # fmt: skip
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama2": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama3": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, num_key_value_heads=2, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True)
    ),
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(**SIZES, num_key_value_heads=1, head_dim=16, sliding_window=None)
    ),
    "mistral-sliding": lambda: MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=96)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=2)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=24)),
}


def reference(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model whose norms and biases are random too, so that none of them could be left out unseen."""
    torch.manual_seed(7)
    model = FAMILIES[family]().to(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.set_attn_implementation("sdpa")
    return model.to(dtype).eval()


def ours(theirs: Any, dtype: torch.dtype = torch.float32, ops: str = "torch") -> Model:
    config = ModelConfig.of(theirs.config)
    return Model(config, from_state_dict(theirs.state_dict(), config, dtype, "cpu"), make_ops(ops))


@torch.inference_mode()
def their_logits(theirs: Any, tokens: Sequence[int]) -> Tensor:
    """Logits after every token, ``(tokens, V)``."""
    logits: Tensor = theirs(torch.tensor([list(tokens)])).logits[0]
    return logits


@dataclass
class Sequences:
    """Requests of given tokens, run step by step over one cache, in scattered blocks."""

    model: Model
    tokens: list[list[int]]
    block_size: int = 4
    cache_dtype: torch.dtype | None = None
    cache: KvCache = field(init=False)

    def __post_init__(self) -> None:
        per_request = -(-2 * max(map(len, self.tokens)) // self.block_size)
        ids = np.random.default_rng(3).permutation(np.arange(1, 1 + len(self.tokens) * per_request))
        self.tables = ids.reshape(len(self.tokens), per_request).tolist()
        dtype = self.cache_dtype or self.model.dtype
        self.cache = KvCache(self.model.config, ids.size + 1, self.block_size, dtype, "cpu")
        self.computed = [0] * len(self.tokens)

    def step(self, scheduled: dict[int, int], *, padded_to: int | None = None) -> dict[int, Tensor]:
        """Run a flat step of so many tokens per request; logits after each of them, by request."""
        batch = flat_batch(
            [self._request(index, count, drafts=count - 1) for index, count in scheduled.items()],
            self.block_size,
            padded_to=padded_to,
        )
        logits = self.model.forward(flat_inputs(batch), self.cache)
        return self._split(logits, scheduled)

    def rectangle(self, scheduled: dict[int, int], pads: dict[int, int], side: Any = "left") -> dict[int, Tensor]:
        """Run a padded step; logits after the last token, by request."""
        requests = [self._request(index, count, pad=pads.get(index, 0)) for index, count in scheduled.items()]
        batch = padded_batch(requests, self.block_size, padding_side=side)
        logits = self.model.forward(padded_inputs(batch), self.cache)
        return self._split(logits, dict.fromkeys(scheduled, 1), computed=scheduled)

    def _request(self, index: int, count: int, *, drafts: int = 0, pad: int = 0) -> BatchRequest:
        return BatchRequest(
            str(index), self.tokens[index], self.computed[index], count, self.tables[index], pad, drafts
        )

    def _split(self, logits: Tensor, rows: dict[int, int], computed: dict[int, int] | None = None) -> dict[int, Tensor]:
        for index, count in (computed or rows).items():
            self.computed[index] += count
        return dict(zip(rows, torch.split(logits, list(rows.values())), strict=True))


def flat_inputs(batch: FlatBatch) -> StepInputs:
    count = len(batch.slots)
    starts = batch.query_start_loc[: count + 1]
    attention = FlatAttention(
        torch.from_numpy(starts), torch.from_numpy(batch.seq_lens), torch.from_numpy(batch.block_table),
        int(np.diff(starts).max()), int(batch.seq_lens.max()), batch,
    )  # fmt: skip
    return _inputs(batch, attention)


def padded_inputs(batch: PaddedBatch) -> StepInputs:
    rows, cols = batch.positions.shape
    mask = torch.from_numpy(batch.attention_mask(padding_sees_first=True))
    table = torch.from_numpy(batch.block_table)
    return _inputs(batch, PaddedAttention(batch, table, mask, rows, cols, batch.width))


def _inputs(batch: FlatBatch | PaddedBatch, attention: FlatAttention | PaddedAttention) -> StepInputs:
    ids, positions, slots = (
        torch.from_numpy(array.reshape(-1)) for array in (batch.input_ids, batch.positions, batch.slot_mapping)
    )
    return StepInputs(ids, positions, slots, torch.from_numpy(batch.logits_indices), attention)


def random_tokens(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, SIZES["vocab_size"], length).tolist() for length in lengths]
