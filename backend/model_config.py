"""The facts of an architecture that the model needs, read from a Hugging Face configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.errors import ConfigError, InputError, unknown_name

if TYPE_CHECKING:
    import torch

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Known architectures and the `model_type` each goes by (SmolLM2 is a Llama, Qwen2.5 a Qwen2)."""
REFUSED_BIASES = ("attention_bias", "mlp_bias")
"""Biases that no released model of these families has; their weights would be left out."""


@dataclass(frozen=True)
class Llama3Scaling:
    """How Llama 3.1 and later stretch the low frequencies of the rotary embedding (`rope_type` ``llama3``)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class RopeConfig:
    """The rotary embedding: base `theta`, and the scaling of its frequencies if any."""

    theta: float
    scaling: Llama3Scaling | None = None


@dataclass(frozen=True)
class ModelConfig:
    """The facts of one model.

    Attributes:
        architecture: a key of `ARCHITECTURES`.
        head_dim: size of an attention head; need not be hidden_size / num_heads.
        max_positions: longest sequence. Where the model has an active sliding window it is cut to that window, within
            which full attention gives the same numbers.
        qkv_bias: Q, K and V projections have a bias (Qwen2).
        qk_norm: each head of Q and K is normalised (Qwen3).
        eos_token_ids: from ``generation_config.json`` when there is one that names them, else from ``config.json``.
        dtype: of the checkpoint; float32 where the configuration does not say.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_positions: int
    tie_word_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    dtype: torch.dtype

    @classmethod
    def load(cls, folder: Path) -> ModelConfig:
        """Read ``config.json`` (and ``generation_config.json``) of a model directory.

        Raises ConfigError for an architecture or a feature that is not known here, InputError for a broken file.
        """
        path = folder / "config.json"
        _architecture(_read_json(path))  # transformers' own complaint about an unknown model is a page long
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoConfig

        try:
            loaded = AutoConfig.from_pretrained(folder)
        except (ValueError, TypeError, KeyError, OSError, StrictDataclassError) as error:
            raise InputError(f"not a model configuration ({_one_line(error)})", path=path) from error
        generation = folder / "generation_config.json"
        return cls.of(loaded, generation=_read_json(generation) if generation.exists() else {})

    @classmethod
    def of(cls, config: Any, *, generation: Mapping[str, Any] | None = None) -> ModelConfig:
        """From a transformers configuration object, and the contents of ``generation_config.json`` if there are any.

        Raises ConfigError, naming the field, for what this implementation does not cover.
        """
        facts = config.to_dict()
        architecture = _architecture(facts)
        _refuse_unsupported(facts)
        heads = facts["num_attention_heads"]
        return cls(
            architecture=architecture,
            vocab_size=facts["vocab_size"],
            hidden_size=facts["hidden_size"],
            intermediate_size=facts["intermediate_size"],
            num_layers=facts["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=facts.get("num_key_value_heads") or heads,
            head_dim=facts.get("head_dim") or facts["hidden_size"] // heads,
            rms_norm_eps=facts["rms_norm_eps"],
            rope=_rope(facts),
            max_positions=_max_positions(facts),
            tie_word_embeddings=bool(facts.get("tie_word_embeddings")),
            qkv_bias=architecture == "Qwen2ForCausalLM",
            qk_norm=architecture == "Qwen3ForCausalLM",
            eos_token_ids=_token_ids((generation or {}).get("eos_token_id")) or _token_ids(facts.get("eos_token_id")),
            bos_token_id=facts.get("bos_token_id"),
            pad_token_id=facts.get("pad_token_id"),
            dtype=_dtype(config),
        )

    @property
    def num_parameters(self) -> int:
        """Weights of the model, a tied LM head counted once."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        qkv = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim if self.qkv_bias else 0
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        layer = heads * self.hidden_size + qkv + norms + 3 * self.hidden_size * self.intermediate_size
        tables = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * layer + tables + self.hidden_size


def _architecture(facts: Mapping[str, Any]) -> str:
    named = facts.get("architectures") or []
    by_type = {model_type: name for name, model_type in ARCHITECTURES.items()}
    name = named[0] if named else by_type.get(facts.get("model_type", ""), str(facts.get("model_type")))
    if name not in ARCHITECTURES:
        raise unknown_name("architecture", name, ARCHITECTURES)
    return str(name)


def _refuse_unsupported(facts: Mapping[str, Any]) -> None:
    for field in REFUSED_BIASES:
        if facts.get(field):
            raise ConfigError(f"config.json: {field} is true; models with such biases are not supported")
    if facts.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ConfigError(f"config.json: hidden_act is {facts['hidden_act']!r}; expected 'silu'")
    heads, kv_heads = facts["num_attention_heads"], facts.get("num_key_value_heads") or facts["num_attention_heads"]
    if heads % kv_heads:
        raise ConfigError(
            f"config.json: num_attention_heads is {heads}; expected a multiple of the {kv_heads} KV heads"
        )


def _rope(facts: Mapping[str, Any]) -> RopeConfig:
    """Transformers 5 keeps all of it in `rope_parameters`, older ones in `rope_theta` and `rope_scaling`."""
    given = facts.get("rope_parameters") or facts.get("rope_scaling") or {}
    theta = float(given.get("rope_theta") or facts.get("rope_theta") or 10000.0)
    kind = given.get("rope_type") or given.get("type") or "default"
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError("config.json: partial_rotary_factor is set; expected whole heads to rotate")
    if kind == "default":
        return RopeConfig(theta)
    if kind != "llama3":
        raise ConfigError(f"config.json: rope_type is {kind!r}; known: 'default', 'llama3'")
    missing = [name for name in ("factor", "low_freq_factor", "high_freq_factor") if name not in given]
    if missing:
        raise ConfigError(f"config.json: rope_parameters lacks {missing[0]}, which rope_type 'llama3' needs")
    original = given.get("original_max_position_embeddings") or facts["max_position_embeddings"]
    scaling = Llama3Scaling(given["factor"], given["low_freq_factor"], given["high_freq_factor"], int(original))
    return RopeConfig(theta, scaling)


def _max_positions(facts: Mapping[str, Any]) -> int:
    longest, window = int(facts["max_position_embeddings"]), facts.get("sliding_window")
    layers = facts.get("layer_types")
    slides = "sliding_attention" in layers if layers else facts.get("use_sliding_window", True)
    return min(longest, int(window)) if window and slides else longest


def _token_ids(given: int | list[int] | None) -> tuple[int, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, int) else tuple(given)


def _dtype(config: Any) -> torch.dtype:
    import torch

    named = getattr(config, "dtype", None)
    if isinstance(named, torch.dtype):
        return named
    found = getattr(torch, str(named).removeprefix("torch."), None)
    return found if isinstance(found, torch.dtype) else torch.float32


def _read_json(path: Path) -> dict[str, Any]:
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); expected a model directory", path=path) from error
    except ValueError as error:
        raise InputError(f"is not JSON ({error})", path=path) from error
    if not isinstance(contents, dict):
        raise InputError("is not a JSON object", path=path)
    return contents


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
