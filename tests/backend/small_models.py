"""Small random models, saved as directories, for tests of the engine; the reference is transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

EOS = (7, 11, 19)
VOCAB = 97


def save_small_llama(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A Llama of 2 layers with random weights, wide enough apart that greedy choices vary; returns its directory."""
    facts: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": list(EOS),
        "bos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False, "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**facts, **changes}))
    model.generation_config.eos_token_id = list(EOS)
    model.save_pretrained(folder)
    return folder


def random_prompts(count: int, *, seed: int = 0, longest: int = 40) -> list[list[int]]:
    """Prompts of 1 to `longest` tokens; every third begins with one of three common prefixes of 24 tokens."""
    rng = np.random.Generator(np.random.PCG64(seed))
    prefixes = rng.integers(20, VOCAB, size=(3, 24))
    prompts = []
    for index in range(count):
        own = rng.integers(20, VOCAB, size=int(rng.integers(1, longest + 1))).tolist()
        prompts.append([*prefixes[index % 9 // 3].tolist(), *own] if index % 3 == 0 else own)
    return prompts


def greedy_alone(folder: Path, prompts: list[list[int]], limits: list[int], dtype: torch.dtype) -> list[list[int]]:
    """What transformers' `generate` gives for each prompt, an EOS included; prompts of one length go together."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    model.eval()
    outputs: list[list[int]] = [[] for _ in prompts]
    for length in sorted({len(prompt) for prompt in prompts}):
        which = [index for index, prompt in enumerate(prompts) if len(prompt) == length]
        whole = _generate(model, [prompts[index] for index in which], max(limits[index] for index in which))
        for index, tokens in zip(which, whole, strict=True):
            outputs[index] = _until_eos(tokens[: limits[index]])
    return outputs


@torch.inference_mode()
def _generate(model: LlamaForCausalLM, prompts: list[list[int]], limit: int) -> list[list[int]]:
    ids = torch.tensor(prompts)
    whole = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit, pad_token_id=0
    )  # fmt: skip
    tokens: list[list[int]] = whole[:, ids.shape[1] :].tolist()
    return tokens


def _until_eos(tokens: list[int]) -> list[int]:
    ends = [place for place, token in enumerate(tokens) if token in EOS]
    return tokens[: ends[0] + 1] if ends else tokens
