"""Weights are read from safetensors, one file or shards, fused as the model wants them, and checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from backend.model_config import ModelConfig
from backend.weights import (
    SafetensorsFolder,
    from_state_dict,
    load_weights,
    num_bytes,
    random_weights,
    state_shapes,
)  # fmt: skip
from scheduler.errors import InputError

from .families import FAMILIES, Sequences, ours, random_tokens, reference


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
@pytest.mark.parametrize("shard_size", ["1GB", "60KB"])
def test_a_saved_model_comes_back_the_same(family: str, shard_size: str, tmp_path: Path) -> None:
    theirs = reference(family)
    theirs.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors").exists() == (shard_size == "1GB")
    config = ModelConfig.load(tmp_path)
    loaded = load_weights(tmp_path, config, torch.float32, "cpu")
    direct = from_state_dict(theirs.state_dict(), config, torch.float32, "cpu")
    assert torch.equal(loaded.embed, direct.embed)
    assert torch.equal(loaded.lm_head, direct.lm_head)
    for ours_, theirs_ in zip(loaded.layers, direct.layers, strict=True):
        for name in ("qkv", "o", "gate_up", "down", "input_norm", "post_norm", "qkv_bias", "q_norm", "k_norm"):
            mine, expected = getattr(ours_, name), getattr(theirs_, name)
            assert (mine is None and expected is None) or torch.equal(mine, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_a_checkpoint_is_known_by_name_and_shape(family: str) -> None:
    theirs = FAMILIES[family]()
    expected = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    if theirs.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    assert dict(state_shapes(ModelConfig.of(theirs.config))) == expected


def test_bytes_are_counted_by_dtype() -> None:
    theirs = FAMILIES["llama2"]()
    assert num_bytes(ModelConfig.of(theirs.config), torch.bfloat16) == 2 * theirs.num_parameters()


def test_tied_embeddings_serve_as_the_lm_head() -> None:
    theirs = reference("llama3")
    weights = from_state_dict(theirs.state_dict(), ModelConfig.of(theirs.config), torch.float32, "cpu")
    assert weights.lm_head is weights.embed


def test_random_weights_are_a_function_of_the_seed() -> None:
    config = ModelConfig.of(FAMILIES["qwen2"]().config)
    one, same, other = (random_weights(config, torch.float32, "cpu", seed) for seed in (1, 1, 2))
    assert torch.equal(one.layers[2].gate_up, same.layers[2].gate_up)
    assert not torch.equal(one.layers[2].gate_up, other.layers[2].gate_up)
    assert not torch.equal(one.layers[0].down, one.layers[1].down)
    assert one.embed.std().item() == pytest.approx(0.02, rel=0.05)


def test_a_missing_tensor_is_named() -> None:
    theirs = reference("llama2")
    state = theirs.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        from_state_dict(state, ModelConfig.of(theirs.config), torch.float32, "cpu")


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    theirs = reference("llama2")
    theirs.save_pretrained(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(facts | {"vocab_size": 400}))
    with pytest.raises(InputError, match=r"embed_tokens\.weight has shape \(331, 64\); expected \(400, 64\)"):
        load_weights(tmp_path, ModelConfig.load(tmp_path), torch.float32, "cpu")


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.safetensors: is not there"):
        SafetensorsFolder(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    reference("llama2").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"model\.safetensors: is not a safetensors file"):
        SafetensorsFolder(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    theirs = reference("llama2")
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    missing = sorted(tmp_path.glob("model-*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(InputError, match=missing.name):
        load_weights(tmp_path, ModelConfig.of(theirs.config), torch.float32, "cpu")


@pytest.mark.parametrize("contents", ["{", "{}", '{"weight_map": 3}'])
def test_a_broken_index_is_named(tmp_path: Path, contents: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(contents)
    with pytest.raises(InputError, match=r"index\.json: is not a safetensors index"):
        SafetensorsFolder(tmp_path)


def test_a_float16_checkpoint_computes_in_float64_what_its_numbers_say(tmp_path: Path) -> None:
    half = reference("llama3", torch.float16)
    half.save_pretrained(tmp_path)
    config = ModelConfig.load(tmp_path)
    assert config.dtype == torch.float16
    loaded = load_weights(tmp_path, config, torch.float64, "cpu")
    expected = ours(half.to(torch.float64), torch.float64)
    assert torch.equal(loaded.layers[0].down.half().double(), loaded.layers[0].down)
    tokens = random_tokens(5)
    assert Sequences(expected, tokens).step({0: 5})[0].dtype == torch.float64
