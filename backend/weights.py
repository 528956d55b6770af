"""The model's weights: fused per layer, from safetensors (one file or shards), a state dict, or a random generator."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from scheduler.errors import InputError

from .model_config import ModelConfig

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
INITIAL_STD = 0.02
"""Standard deviation of random weights: `initializer_range` of all these families' configurations."""


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer; Q, K, V stand above each other in `qkv`, gate above up in `gate_up`.

    Shapes: norms ``(H,)``, `qkv` ``((Hq + 2 * Hkv) * D, H)`` with its bias or None, head norms ``(D,)`` or None,
    `o` ``(H, Hq * D)``, `gate_up` ``(2 * I, H)``, `down` ``(H, I)``.
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(slots=True)
class Weights:
    """All weights: `embed` ``(V, H)``, the layers, the last `norm` ``(H,)``, `lm_head` ``(V, H)`` (`embed` if tied)."""

    embed: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    lm_head: Tensor
    config: ModelConfig


def load_weights(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> Weights:
    """Read ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names.

    Raises InputError when a file or a tensor is missing, broken, or of another shape than the configuration says.
    """
    return from_state_dict(SafetensorsFolder(folder), config, dtype, device)


def from_state_dict(
    state: Mapping[str, Tensor], config: ModelConfig, dtype: torch.dtype, device: torch.device | str
) -> Weights:
    """From tensors under their Hugging Face names (``model.layers.0.self_attn.q_proj.weight``...); others are ignored.

    Raises InputError for one that is missing or has another shape than the configuration says.
    """
    reader = _Reader(state, config, dtype, torch.device(device))
    embed = reader.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    tied = config.tie_word_embeddings
    lm_head = embed if tied else reader.take("lm_head.weight", config.vocab_size, config.hidden_size)
    layers = [reader.layer(index) for index in range(config.num_layers)]
    return Weights(embed, layers, reader.take("model.norm.weight", config.hidden_size), lm_head, config)


def random_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device | str, seed: int = 0) -> Weights:
    """Normal weights (`INITIAL_STD`), norms of one and biases of zero, as an untrained model has them."""
    return from_state_dict(_RandomState(config, seed), config, dtype, device)


class SafetensorsFolder(Mapping[str, Tensor]):
    """The tensors of a model directory by name; each is read (mapped from the file) when asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / INDEX_FILE
        single = folder / SINGLE_FILE
        self._file_of = _read_index(index) if index.exists() else dict.fromkeys(_names(single), SINGLE_FILE)

    def __getitem__(self, name: str) -> Tensor:
        from safetensors import SafetensorError, safe_open

        path = self._folder / self._file_of[name]
        try:
            with safe_open(path, framework="pt") as tensors:
                tensor: Tensor = tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise InputError(f"tensor {name} cannot be read ({error})", path=path) from error
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def __repr__(self) -> str:
        return str(self._folder)


def _names(path: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise InputError(f"is not there, nor is {INDEX_FILE}; expected the weights as safetensors", path=path)
    try:
        with safe_open(path, framework="pt") as tensors:
            return list(tensors.keys())
    except (OSError, SafetensorError) as error:
        raise InputError(f"is not a safetensors file ({error})", path=path) from error


def _read_index(path: Path) -> dict[str, str]:
    try:
        file_of = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in file_of.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError("is not a safetensors index; expected weight_map, file by tensor name", path=path) from error


class _Reader:
    """Takes tensors out of a state dict, checked, fused and converted."""

    def __init__(
        self, state: Mapping[str, Tensor], config: ModelConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._state = state
        self._config = config
        self._dtype = dtype
        self._device = device

    def take(self, name: str, *shape: int) -> Tensor:
        return self._checked(name, shape).to(self._device, self._dtype)

    def fuse(self, prefix: str, names: Mapping[str, int], *rest: int, suffix: str = "weight") -> Tensor:
        """The tensors ``(rows, *rest)`` of several layers above each other; `names` gives each one's rows."""
        fused = torch.empty((sum(names.values()), *rest), dtype=self._dtype, device=self._device)
        start = 0
        for name, rows in names.items():
            fused[start : start + rows] = self._checked(f"{prefix}{name}.{suffix}", (rows, *rest))
            start += rows
        return fused

    def layer(self, index: int) -> LayerWeights:
        c = self._config
        prefix = f"model.layers.{index}."
        q_rows, kv_rows = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        attention = {"self_attn.q_proj": q_rows, "self_attn.k_proj": kv_rows, "self_attn.v_proj": kv_rows}
        mlp = {"mlp.gate_proj": c.intermediate_size, "mlp.up_proj": c.intermediate_size}
        return LayerWeights(
            input_norm=self.take(f"{prefix}input_layernorm.weight", c.hidden_size),
            qkv=self.fuse(prefix, attention, c.hidden_size),
            qkv_bias=self.fuse(prefix, attention, suffix="bias") if c.qkv_bias else None,
            q_norm=self.take(f"{prefix}self_attn.q_norm.weight", c.head_dim) if c.qk_norm else None,
            k_norm=self.take(f"{prefix}self_attn.k_norm.weight", c.head_dim) if c.qk_norm else None,
            o=self.take(f"{prefix}self_attn.o_proj.weight", c.hidden_size, q_rows),
            post_norm=self.take(f"{prefix}post_attention_layernorm.weight", c.hidden_size),
            gate_up=self.fuse(prefix, mlp, c.hidden_size),
            down=self.take(f"{prefix}mlp.down_proj.weight", c.hidden_size, c.intermediate_size),
        )

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._state:
            raise InputError(f"weight {name} is missing", path=self._where)
        tensor = self._state[name]
        if tuple(tensor.shape) != shape:
            raise InputError(f"weight {name} has shape {tuple(tensor.shape)}; expected {shape}", path=self._where)
        return tensor

    @property
    def _where(self) -> object:
        return self._state if isinstance(self._state, SafetensorsFolder) else None


class _RandomState(Mapping[str, Tensor]):
    """Random tensors under their Hugging Face names, each from a generator of its own (seed and name)."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._shapes = dict(state_shapes(config))
        self._order = {name: place for place, name in enumerate(self._shapes)}
        self._seed = seed

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        if name.endswith("bias"):
            return torch.zeros(shape)
        generator = torch.Generator().manual_seed(self._seed * len(self._order) + self._order[name])
        return torch.randn(shape, generator=generator) * INITIAL_STD

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def state_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a checkpoint, in the order of the model."""
    c = config
    q_rows, kv_rows = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    yield "model.embed_tokens.weight", (c.vocab_size, c.hidden_size)
    for index in range(c.num_layers):
        layer = f"model.layers.{index}."
        yield layer + "input_layernorm.weight", (c.hidden_size,)
        for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows, c.hidden_size)
            if c.qkv_bias:
                yield f"{layer}self_attn.{name}_proj.bias", (rows,)
            if c.qk_norm and name != "v":
                yield f"{layer}self_attn.{name}_norm.weight", (c.head_dim,)
        yield layer + "self_attn.o_proj.weight", (c.hidden_size, q_rows)
        yield layer + "post_attention_layernorm.weight", (c.hidden_size,)
        yield layer + "mlp.gate_proj.weight", (c.intermediate_size, c.hidden_size)
        yield layer + "mlp.up_proj.weight", (c.intermediate_size, c.hidden_size)
        yield layer + "mlp.down_proj.weight", (c.hidden_size, c.intermediate_size)
    yield "model.norm.weight", (c.hidden_size,)
    if not c.tie_word_embeddings:
        yield "lm_head.weight", (c.vocab_size, c.hidden_size)


def num_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that the weights take."""
    return sum(math.prod(shape) for _, shape in state_shapes(config)) * dtype.itemsize
