"""A Hugging Face configuration becomes the facts of the model, or a sentence that says what is not covered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from backend.model_config import Llama3Scaling, ModelConfig, RopeConfig
from backend.rotary import cos_sin_table
from scheduler.errors import ConfigError, InputError

from .families import FAMILIES, LLAMA3_ROPE, SIZES

GROUPED = {**SIZES, "num_key_value_heads": 2}


def write(folder: Path, **fields: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def llama(**fields: Any) -> dict[str, Any]:
    """A ``config.json`` as Llama checkpoints have it."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES, **fields}


def test_sizes_come_from_the_configuration() -> None:
    config = ModelConfig.of(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=24, rms_norm_eps=1e-5))
    assert config.architecture == "Qwen3ForCausalLM"
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (331, 64, 112)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (3, 4, 2, 24)
    assert (config.rms_norm_eps, config.max_positions, config.dtype) == (1e-5, 512, torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_counted_as_transformers_counts_them(family: str) -> None:
    theirs = FAMILIES[family]()
    assert ModelConfig.of(theirs.config).num_parameters == theirs.num_parameters()


def test_biases_and_head_norms_follow_the_family() -> None:
    facts = {
        kind.__name__: ModelConfig.of(kind(**SIZES, num_key_value_heads=2))
        for kind in (LlamaConfig, Qwen2Config, Qwen3Config)
    }
    assert {name: (c.qkv_bias, c.qk_norm) for name, c in facts.items()} == {
        "LlamaConfig": (False, False), "Qwen2Config": (True, False), "Qwen3Config": (False, True),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (MistralConfig(**GROUPED, sliding_window=96), 96),
        (MistralConfig(**GROUPED, sliding_window=None), 512),
        (MistralConfig(**GROUPED, sliding_window=4096), 512),
        (Qwen2Config(**GROUPED, use_sliding_window=False, sliding_window=96), 512),
        (
            Qwen2Config(
                **SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=96, max_window_layers=0
            ),
            96,
        ),
    ],
)
def test_an_active_sliding_window_cuts_the_positions(config: Any, longest: int) -> None:
    assert ModelConfig.of(config).max_positions == longest


def test_old_and_new_rope_fields_mean_the_same(tmp_path: Path) -> None:
    scaling = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
    old = ModelConfig.load(write(tmp_path, **llama(rope_theta=500000.0, rope_scaling=scaling)))
    new = ModelConfig.load(write(tmp_path, **llama(rope_parameters=LLAMA3_ROPE | {"rope_theta": 500000.0})))
    assert old.rope == new.rope == RopeConfig(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 64))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rotary_table_is_transformers_to_the_bit(family: str) -> None:
    theirs = FAMILIES[family]()
    config = ModelConfig.of(theirs.config)
    cos, sin = theirs.model.rotary_emb(torch.zeros(1), torch.arange(512)[None])
    half = config.head_dim // 2
    expected = torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)
    assert torch.equal(cos_sin_table(config.rope, config.head_dim, 512, torch.float32), expected)


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [(2, None, (2,)), (2, {"eos_token_id": [5, 7]}, (5, 7)), ([3, 4], {"top_k": 3}, (3, 4)), (None, None, ())],
)
def test_eos_comes_from_the_generation_config_first(
    tmp_path: Path, in_config: Any, in_generation: Any, expected: tuple[int, ...]
) -> None:
    write(tmp_path, **llama(eos_token_id=in_config))
    if in_generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(in_generation))
    assert ModelConfig.load(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize("named", [{"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}])
def test_the_checkpoints_dtype_is_known(tmp_path: Path, named: dict[str, str]) -> None:
    assert ModelConfig.load(write(tmp_path, **llama(**named))).dtype == torch.bfloat16


def test_an_unknown_architecture_is_refused_with_those_known(tmp_path: Path) -> None:
    write(tmp_path, architectures=["Qwen9ForCausalLM"], model_type="qwen9")
    with pytest.raises(ConfigError, match=r"'Qwen9ForCausalLM'.*known: LlamaForCausalLM, MistralForCausalLM, Qwen2"):
        ModelConfig.load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "rope_type is 'yarn'"),
    ],
)
def test_what_is_not_covered_is_refused_by_the_fields_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ModelConfig.of(LlamaConfig(**SIZES, **fields))


def test_a_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: cannot be read"):
        ModelConfig.load(tmp_path)


@pytest.mark.parametrize("contents", ["{", "[1]"])
def test_a_configuration_that_is_no_json_object_is_named(tmp_path: Path, contents: str) -> None:
    (tmp_path / "config.json").write_text(contents)
    with pytest.raises(InputError, match=r"config\.json: is not"):
        ModelConfig.load(tmp_path)


def test_a_configuration_of_the_wrong_types_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises((InputError, ConfigError), match=r"config\.json") as caught:
        ModelConfig.load(write(tmp_path, **llama(hidden_size="big")))
    assert "\n" not in str(caught.value)
