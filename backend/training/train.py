"""The training itself: a small Llama, Muon and AdamW, one thread, the same weights every time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from .batches import Batch, batches
from .corpus import BEGIN, END_IDS, SPECIAL_TOKENS, STOP
from .muon import Muon

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_POSITIONS = 2048


@dataclass(frozen=True)
class Recipe:
    """All that decides the weights, besides the versions of the libraries.

    Attributes:
        steps: optimizer steps.
        tokens: places in a step's batch, padding included.
        matrix_lr: Muon's learning rate, for the matrices of the layers.
        other_lr: AdamW's learning rate, for embeddings and norms.
        warmup: steps in which both rise from 0; then they fall along a cosine to `last` of themselves.
    """

    seed: int = 0
    steps: int = 1400
    tokens: int = 2048
    matrix_lr: float = 0.02
    other_lr: float = 5e-3
    warmup: int = 20
    last: float = 0.03


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """The shape: 4 layers of 256, 4 heads of 64 over 2 KV heads, tied embeddings; 3.3 million parameters."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=SPECIAL_TOKENS.index(BEGIN),
        eos_token_id=END_IDS,
        pad_token_id=SPECIAL_TOKENS.index(STOP),
    )


def train(
    tokenizer: Tokenizer, recipe: Recipe, on_step: Callable[[int, float], None] = lambda step, loss: None
) -> LlamaForCausalLM:
    """Train from random weights; `on_step` is told each step's number and loss (nats).

    The same recipe gives the same weights, bit for bit, on one kind of CPU with one version of torch.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.seed)
    model: LlamaForCausalLM = LlamaForCausalLM(model_config(tokenizer))
    matrices = [weight for name, weight in model.named_parameters() if weight.dim() == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.dim() != 2 or "embed" in name]
    muon, adam = Muon(matrices), torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
    for step, batch in enumerate(islice(batches(tokenizer, recipe.seed, recipe.tokens), recipe.steps)):
        share = _schedule(step, recipe)
        adam.param_groups[0]["lr"] = share * recipe.other_lr
        loss = _loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        muon.step(share * recipe.matrix_lr)
        adam.step()
        model.zero_grad()
        on_step(step, loss.item())
    model.eval()  # type: ignore[no-untyped-call]  # here too
    return model


def _loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted mean of the cross-entropy; rows are padded on the right, so causal attention needs no mask."""
    ids, weights = torch.from_numpy(batch.ids), torch.from_numpy(batch.weights)[:, 1:]
    learned = weights > 0
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    losses = cross_entropy(model.lm_head(hidden[learned]), ids[:, 1:][learned], reduction="none")
    return losses @ weights[learned] / weights.sum()


def _schedule(step: int, recipe: Recipe) -> float:
    """The share of the full learning rates at a step."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.last + (1 - recipe.last) * (1 + math.cos(math.pi * done)) / 2
