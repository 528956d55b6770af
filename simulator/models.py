"""Model sheets: the shape of a decoder-only transformer, by name or from a Hugging Face `config.json`."""

from __future__ import annotations

import json
import multiprocessing
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scheduler.errors import ConfigError, InputError, unknown_name

WIDTHS: dict[str, float] = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2 / 128}
"""Bytes a stored number takes; `int4` has a 16-bit scale for each group of 128, as GPTQ and AWQ files usually do."""

KINDS = (
    "cohere", "exaone", "falcon", "gemma", "gemma2", "gemma3", "glm", "glm4", "gpt2", "gpt_neox", "granite",
    "internlm2", "llama", "mistral", "mistral3", "mixtral", "olmo", "olmo2", "opt", "phi", "phi3", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2",
)  # fmt: skip
"""Values of `model_type` whose models have plain attention layers, each followed by an MLP or a mixture of experts."""


@dataclass(frozen=True)
class ModelSheet:
    """Shape of a decoder-only transformer.

    Attributes:
        name: as given to ``--model``.
        hidden, layers, heads, kv_heads, head_dim: as in the model's configuration.
        intermediate: inner width of the MLP, of one expert when `experts` > 0.
        vocab: rows of the embedding.
        max_positions: longest sequence it was made for, tokens.
        gated_mlp: the MLP has gate, up and down projections (SwiGLU), else up and down.
        tied_embeddings: the LM head is the embedding.
        sliding_window: each token attends to so many last positions at most; None: to all.
        experts, experts_per_token: mixture of experts in each layer; 0: a dense MLP.
        qkv_bias: the query, key and value projections have biases.
        linear_bias: all projections have biases (OPT).
        learned_positions: rows of a learned position embedding (OPT); 0: rotary.
        qk_norm: norms over the heads of queries and keys (Qwen3).
        source: where the figures are from.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    source: str
    gated_mlp: bool = True
    tied_embeddings: bool = False
    sliding_window: int | None = None
    experts: int = 0
    experts_per_token: int = 0
    qkv_bias: bool = False
    linear_bias: bool = False
    learned_positions: int = 0
    qk_norm: bool = False

    @property
    def mlp_parameters(self) -> int:
        """Weights of one MLP, or of one expert, in one layer."""
        return self.hidden * self.intermediate * (3 if self.gated_mlp else 2)

    @property
    def attention_parameters(self) -> int:
        """Weights of the q, k, v and o projections of one layer."""
        return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)

    @property
    def layer_parameters(self) -> int:
        """Weights of the matrix products of one layer, all experts and the router included."""
        router = self.hidden * self.experts
        return self.attention_parameters + self.mlp_parameters * max(1, self.experts) + router

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding, the LM head (unless tied) and learned positions."""
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + self.learned_positions * self.hidden

    @property
    def num_parameters(self) -> int:
        """All parameters, norms and biases included."""
        return self.layers * (self.layer_parameters + self._small_parameters()) + self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with (of the experts, those it is routed to)."""
        idle = max(0, self.experts - self.experts_per_token) * self.mlp_parameters
        return self.num_parameters - self.layers * idle

    def kv_bytes_per_token(self, kv_width: float = 2.0, tensor_parallel: int = 1) -> int:
        """Bytes of KV a token takes on one device, all layers; KV heads are replicated beyond one a device."""
        heads = max(1, self.kv_heads // tensor_parallel)
        return round(2 * self.layers * heads * self.head_dim * kv_width)

    def check_tensor_parallel(self, tensor_parallel: int) -> None:
        """Raise ConfigError when the heads cannot be divided among so many devices."""
        if isinstance(tensor_parallel, bool) or not isinstance(tensor_parallel, int) or tensor_parallel < 1:
            raise ConfigError(f"tensor_parallel is {tensor_parallel!r}; expected a whole number >= 1")
        if self.heads % tensor_parallel or max(self.kv_heads, tensor_parallel) % min(self.kv_heads, tensor_parallel):
            raise ConfigError(
                f"tensor_parallel is {tensor_parallel}; {self.name} has {self.heads} heads and {self.kv_heads} KV "
                "heads, expected a divisor of the heads and a divisor or multiple of the KV heads"
            )

    def as_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        return asdict(self)

    def _small_parameters(self) -> int:
        """Norms and biases of one layer (the final norm is left out: under a millionth)."""
        norms = 2 * self.hidden * (2 if self.linear_bias else 1) + (2 * self.head_dim if self.qk_norm else 0)
        qkv = self.head_dim * (self.heads + 2 * self.kv_heads) if self.qkv_bias or self.linear_bias else 0
        return norms + qkv + (2 * self.hidden + self.intermediate if self.linear_bias else 0)


def get_model(name: str) -> ModelSheet:
    """The sheet of that name, or read from `name` when it is a `config.json` or a folder that holds one.

    Names do not mind case, a leading organisation (``meta-llama/``) or endings such as ``-Instruct``.

    Raises:
        ConfigError: unknown name; the nearest is suggested.
        InputError: a `config.json` that cannot be read as a model's.
    """
    if name.endswith(".json") or name.startswith((".", "/", "~")) or Path(name).is_dir():
        return read_config(Path(name).expanduser())
    key = _key(name)
    key = _ALIASES.get(key, key)
    if key not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[key]


def model_names() -> list[str]:
    """Names of all sheets."""
    return sorted(MODELS)


def read_config(path: Path) -> ModelSheet:
    """The sheet of a Hugging Face model configuration: a `config.json`, or the folder that holds one."""
    file = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError("no such file; expected a Hugging Face config.json", path=file) from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg}); expected a config.json", path=file, line=error.lineno) from error
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"cannot be read as text ({error}); expected a config.json", path=file) from error
    if not isinstance(data, dict):
        raise InputError("expected a JSON object with the fields of a model configuration", path=file)
    sheet = _from_config(data.get("text_config", data), file)
    if data.get("quantization_config") is not None:
        _warn_of_quantization(file)
    return sheet


@cache
def _warn_of_quantization(file: Path) -> None:
    """Once a file, and not again in every worker."""
    if multiprocessing.parent_process() is None:
        print(
            f"{file}: quantization_config is not read; say how wide the weights are with --weight-dtype",
            file=sys.stderr,
        )


class _Fields:
    """Fields of a model configuration; what is missing or wrong is an InputError that names file and field."""

    def __init__(self, data: dict[str, Any], file: Path) -> None:
        self.data, self.file = data, file

    def number(self, *names: str, default: int | None = None) -> int:
        """The first field of these names that is set, a whole number >= 1; `default` when none is."""
        name = next((name for name in names if self.data.get(name) is not None), None)
        if name is None and default is None:
            raise InputError(f"has no field {names[0]!r}; expected a whole number >= 1", path=self.file)
        value = default if name is None else self.data[name]
        if isinstance(value, bool) or not isinstance(value, int) or (name is not None and value < 1):
            raise InputError(f"field {name!r} is {value!r}; expected a whole number >= 1", path=self.file)
        return value

    def check_kind(self, kind: str) -> None:
        """Raise InputError for a `model_type` that is no transformer of the shape that a sheet can describe."""
        if kind and kind.removesuffix("_text") not in KINDS:
            raise InputError(
                f"field 'model_type' is {kind!r}, which no sheet can describe; expected one of {', '.join(KINDS)} "
                "(write llama for a model of that shape)",
                path=self.file,
            )

    def check_heads(self, heads: int, kv_heads: int, hidden: int) -> None:
        """Raise InputError for numbers of heads that do not divide what they share."""
        if heads % kv_heads:
            raise InputError(
                f"field 'num_key_value_heads' is {kv_heads}; expected a divisor of num_attention_heads {heads}",
                path=self.file,
            )
        if self.data.get("head_dim") is None and hidden % heads:
            raise InputError(
                f"field 'num_attention_heads' is {heads}; expected a divisor of hidden_size {hidden}, or a head_dim",
                path=self.file,
            )

    def window(self) -> int | None:
        """The sliding window, unless it is switched off."""
        off = self.data.get("sliding_window") is None or not self.data.get("use_sliding_window", True)
        return None if off else self.number("sliding_window")


def _from_config(data: dict[str, Any], file: Path) -> ModelSheet:
    fields, kind = _Fields(data, file), str(data.get("model_type", ""))
    fields.check_kind(kind)
    number, opt = fields.number, kind == "opt"
    experts = number("num_local_experts", "num_experts", default=0)
    heads, hidden = number("num_attention_heads", "n_head"), number("hidden_size", "n_embd")
    kv_heads = number("num_key_value_heads", default=heads)
    fields.check_heads(heads, kv_heads, hidden)
    width = number("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden if kind == "gpt2" else None)
    return ModelSheet(
        name=file.resolve().parent.name,
        hidden=hidden,
        layers=number("num_hidden_layers", "n_layer"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=number("head_dim", default=hidden // heads),
        intermediate=number("moe_intermediate_size", default=width) if experts else width,
        vocab=number("vocab_size"),
        max_positions=number("max_position_embeddings", "n_positions"),
        source=f"{file}",
        gated_mlp=not opt and kind not in ("gpt2", "phi", "gpt_neox", "falcon"),
        tied_embeddings=bool(data.get("tie_word_embeddings", kind.startswith(("opt", "gpt2", "gemma")))),
        sliding_window=fields.window(),
        experts=experts,
        experts_per_token=number("num_experts_per_tok") if experts else 0,
        qkv_bias=bool(data.get("attention_bias", kind in ("qwen2", "qwen2_moe"))),
        linear_bias=opt,
        learned_positions=number("max_position_embeddings") + 2 if opt else 0,
        qk_norm=kind in ("qwen3", "qwen3_moe"),
    )


def _key(name: str) -> str:
    key = name.strip().rsplit("/", 1)[-1].lower().replace("_", "-").replace(" ", "-")
    for ending in ("-hf", "-instruct", "-chat", "-base", "-instruct-v0.1", "-instruct-v0.2", "-instruct-v0.3"):
        key = key.removesuffix(ending)
    return key.removeprefix("meta-")


def _llama3(name: str, repo: str, *shape: int, tied: bool = False, positions: int = 131072) -> ModelSheet:
    hidden, layers, heads, kv_heads, head_dim, intermediate = shape
    return ModelSheet(
        name, hidden, layers, heads, kv_heads, head_dim, intermediate, 128256, positions, _hub(f"meta-llama/{repo}"),
        tied_embeddings=tied,
    )  # fmt: skip


def _llama2(size: str, *shape: int) -> ModelSheet:
    hidden, layers, heads, kv_heads, intermediate = shape
    source = _hub(f"meta-llama/Llama-2-{size}-hf")
    return ModelSheet(
        f"llama-2-{size}", hidden, layers, heads, kv_heads, 128, intermediate, 32000, 4096, source,
    )  # fmt: skip


def _qwen25(size: str, *shape: int, tied: bool = False, vocab: int = 152064) -> ModelSheet:
    hidden, layers, heads, kv_heads, intermediate = shape
    return ModelSheet(
        f"qwen2.5-{size}", hidden, layers, heads, kv_heads, hidden // heads, intermediate, vocab, 32768,
        _hub(f"Qwen/Qwen2.5-{size.upper()}-Instruct"), tied_embeddings=tied, qkv_bias=True,
    )  # fmt: skip


def _qwen3(size: str, *shape: int, tied: bool = False) -> ModelSheet:
    hidden, layers, heads, kv_heads, intermediate = shape
    return ModelSheet(
        f"qwen3-{size}", hidden, layers, heads, kv_heads, 128, intermediate, 151936, 40960,
        _hub(f"Qwen/Qwen3-{size.upper()}"), tied_embeddings=tied, qk_norm=True,
    )  # fmt: skip


def _smollm2(size: str, *shape: int) -> ModelSheet:
    hidden, layers, heads, kv_heads, intermediate = shape
    return ModelSheet(
        f"smollm2-{size}", hidden, layers, heads, kv_heads, 64, intermediate, 49152, 8192,
        _hub(f"HuggingFaceTB/SmolLM2-{size.upper()}-Instruct"), tied_embeddings=True,
    )  # fmt: skip


def _hub(repo: str) -> str:
    return f"https://huggingface.co/{repo}/blob/main/config.json"


_SHEETS = (
    _llama3("llama-3-8b", "Meta-Llama-3-8B", 4096, 32, 32, 8, 128, 14336, positions=8192),
    _llama3("llama-3-70b", "Meta-Llama-3-70B", 8192, 80, 64, 8, 128, 28672, positions=8192),
    _llama3("llama-3.1-8b", "Llama-3.1-8B", 4096, 32, 32, 8, 128, 14336),
    _llama3("llama-3.1-70b", "Llama-3.1-70B", 8192, 80, 64, 8, 128, 28672),
    _llama3("llama-3.2-1b", "Llama-3.2-1B", 2048, 16, 32, 8, 64, 8192, tied=True),
    _llama3("llama-3.2-3b", "Llama-3.2-3B", 3072, 28, 24, 8, 128, 8192, tied=True),
    _llama3("llama-3.3-70b", "Llama-3.3-70B-Instruct", 8192, 80, 64, 8, 128, 28672),
    _llama2("7b", 4096, 32, 32, 32, 11008),
    _llama2("13b", 5120, 40, 40, 40, 13824),
    _llama2("70b", 8192, 80, 64, 8, 28672),
    _qwen25("0.5b", 896, 24, 14, 2, 4864, tied=True, vocab=151936),
    _qwen25("1.5b", 1536, 28, 12, 2, 8960, tied=True, vocab=151936),
    _qwen25("3b", 2048, 36, 16, 2, 11008, tied=True, vocab=151936),
    _qwen25("7b", 3584, 28, 28, 4, 18944),
    _qwen25("14b", 5120, 48, 40, 8, 13824),
    _qwen25("32b", 5120, 64, 40, 8, 27648),
    _qwen25("72b", 8192, 80, 64, 8, 29568),
    _qwen3("0.6b", 1024, 28, 16, 8, 3072, tied=True),
    _qwen3("1.7b", 2048, 28, 16, 8, 6144, tied=True),
    _qwen3("4b", 2560, 36, 32, 8, 9728, tied=True),
    _qwen3("8b", 4096, 36, 32, 8, 12288),
    _qwen3("14b", 5120, 40, 40, 8, 17408),
    _qwen3("32b", 5120, 64, 64, 8, 25600),
    ModelSheet(
        "qwen3-30b-a3b", 2048, 48, 32, 4, 128, 768, 151936, 40960, _hub("Qwen/Qwen3-30B-A3B"), experts=128,
        experts_per_token=8, qk_norm=True,
    ),
    ModelSheet(
        "mistral-7b", 4096, 32, 32, 8, 128, 14336, 32000, 32768, _hub("mistralai/Mistral-7B-v0.1"),
        sliding_window=4096,
    ),
    ModelSheet(
        "mistral-7b-v0.3", 4096, 32, 32, 8, 128, 14336, 32768, 32768, _hub("mistralai/Mistral-7B-v0.3"),
    ),
    ModelSheet(
        "mixtral-8x7b", 4096, 32, 32, 8, 128, 14336, 32000, 32768, _hub("mistralai/Mixtral-8x7B-v0.1"), experts=8,
        experts_per_token=2,
    ),
    _smollm2("135m", 576, 30, 9, 3, 1536),
    _smollm2("360m", 960, 32, 15, 5, 2560),
    _smollm2("1.7b", 2048, 24, 32, 32, 8192),
    ModelSheet(
        "opt-13b", 5120, 40, 40, 40, 128, 20480, 50272, 2048, _hub("facebook/opt-13b"), gated_mlp=False,
        tied_embeddings=True, linear_bias=True, learned_positions=2050,
    ),
)  # fmt: skip

MODELS: dict[str, ModelSheet] = {sheet.name: sheet for sheet in _SHEETS}
"""All sheets by name."""
_ALIASES = {
    "llama3-8b": "llama-3-8b", "llama3-70b": "llama-3-70b", "llama3.1-8b": "llama-3.1-8b",
    "llama3.1-70b": "llama-3.1-70b", "llama3.2-1b": "llama-3.2-1b", "llama3.2-3b": "llama-3.2-3b",
    "llama-3-1b": "llama-3.2-1b", "llama-3-3b": "llama-3.2-3b", "llama3.3-70b": "llama-3.3-70b",
    "llama2-7b": "llama-2-7b", "llama2-13b": "llama-2-13b", "llama2-70b": "llama-2-70b",
    "mistral-7b-v0.1": "mistral-7b", "mixtral-8x7b-v0.1": "mixtral-8x7b",
}  # fmt: skip
