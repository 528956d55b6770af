"""Random models made where they are used: on the device, never on the host, never in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from backend.model_config import ModelConfig
from backend.weights import INITIAL_STD, Weights, from_state_dict, state_shapes

_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": True,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_parameters": {**_ROPE, "factor": 32.0},
    },
    "llama-3.1-8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": False,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_parameters": {**_ROPE, "factor": 8.0},
    },
    "tiny": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "tie_word_embeddings": True,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "rope_parameters": {**_ROPE, "factor": 8.0, "original_max_position_embeddings": 128},
    },
}  # fmt: skip
"""From the models' ``config.json``; ``tiny`` is for dry runs."""


def hf_config(name: str) -> LlamaConfig:
    """The model's configuration as transformers has it; it names no end token, so answers run to their full length."""
    return LlamaConfig(**SHAPES[name], bos_token_id=1, eos_token_id=None, pad_token_id=0)


def random_weights(name: str, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Weights:
    """A random model for the engine."""
    config = ModelConfig.of(hf_config(name))
    return from_state_dict(_RandomState(config, dtype, device, seed), config, dtype, device)


def random_model(name: str, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    """A random model for transformers, made by itself on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(hf_config(name), dtype=dtype, attn_implementation="sdpa")
    model = model.to(device).eval()
    model.generation_config.eos_token_id = None
    return model


def weights_of(model: LlamaForCausalLM) -> Weights:
    """The same weights for the engine."""
    config = ModelConfig.of(model.config)
    return from_state_dict(model.state_dict(), config, model.dtype, model.device)


def bytes_read(weights: Weights) -> int:
    """Bytes of weights that a step reads: all but an embedding table that is not the head too (it takes rows of it)."""
    layers = sum(
        tensor.nbytes for layer in weights.layers for name in layer.__slots__
        if (tensor := getattr(layer, name)) is not None
    )  # fmt: skip
    return layers + weights.norm.nbytes + weights.lm_head.nbytes


class _RandomState(Mapping[str, Tensor]):
    """Random tensors under their Hugging Face names, made when asked for."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self._shapes = dict(state_shapes(config))
        self._like = {"dtype": dtype, "device": device}
        self._generator = torch.Generator(device).manual_seed(seed)

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, **self._like)
        return torch.empty(shape, **self._like).normal_(0.0, INITIAL_STD, generator=self._generator)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)
