"""A model directory for tests: a random Llama of 100,000 parameters with a byte-level tokenizer and a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|system|>", "<|developer|>", "<|user|>", "<|assistant|>"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "torch_dtype": "float32",
}  # fmt: skip
Floats = npt.NDArray[np.float32]


def make_tiny_model(folder: Path) -> Path:
    """Write the directory; its weights are the same every time, and its likeliest tokens are letters."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    end, size = tokenizer.token_to_id(SPECIAL[0]), tokenizer.get_vocab_size()
    write(folder / "tokenizer_config.json", {"eos_token": SPECIAL[0], "chat_template": TEMPLATE})
    write(folder / "config.json", {**CONFIG, "vocab_size": size, "eos_token_id": end})
    letters = [index for index, letter in enumerate(alphabet) if letter.isascii() and letter.isprintable()]
    save_file(dict(weights(size, letters)), folder / "model.safetensors")
    return folder


def write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def weights(size: int, letters: list[int]) -> Iterator[tuple[str, Floats]]:
    draw = np.random.default_rng(0)

    def matrix(rows: int, columns: int, spread: float = 0.2) -> Floats:
        return (draw.standard_normal((rows, columns)) * spread).astype(np.float32)

    yield "model.embed_tokens.weight", matrix(size, 64, 1.0)
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", 64, 64), ("self_attn.k_proj", 32, 64), ("self_attn.v_proj", 32, 64),
            ("self_attn.o_proj", 64, 64), ("mlp.gate_proj", 128, 64), ("mlp.up_proj", 128, 64),
            ("mlp.down_proj", 64, 128),
        ):  # fmt: skip
            yield f"{prefix}{name}.weight", matrix(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{name}.weight", np.ones(64, dtype=np.float32)
    yield "model.norm.weight", np.ones(64, dtype=np.float32)
    head = np.zeros((size, 64), dtype=np.float32)
    head[letters] = matrix(len(letters), 64)
    yield "lm_head.weight", head
