"""Tests of the model sheets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import ConfigError, InputError
from simulator.models import MODELS, get_model, model_names

# Published parameter counts in billions (model cards and the tensors of the published checkpoints, tied ones once).
PUBLISHED_B = {
    "llama-3-8b": 8.03, "llama-3-70b": 70.55, "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55, "llama-3.2-1b": 1.236,
    "llama-3.2-3b": 3.213, "llama-3.3-70b": 70.55, "llama-2-7b": 6.738, "llama-2-13b": 13.016, "llama-2-70b": 68.977,
    "qwen2.5-0.5b": 0.494, "qwen2.5-1.5b": 1.544, "qwen2.5-3b": 3.086, "qwen2.5-7b": 7.616, "qwen2.5-14b": 14.77,
    "qwen2.5-32b": 32.76, "qwen2.5-72b": 72.71, "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.72, "qwen3-4b": 4.022,
    "qwen3-8b": 8.191, "qwen3-14b": 14.77, "qwen3-32b": 32.76, "qwen3-30b-a3b": 30.53, "mistral-7b": 7.242,
    "mistral-7b-v0.3": 7.248, "mixtral-8x7b": 46.7, "smollm2-135m": 0.1345, "smollm2-360m": 0.3618,
    "smollm2-1.7b": 1.711, "opt-13b": 12.85,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip


def test_all_models_have_a_published_count() -> None:
    assert set(model_names()) == set(PUBLISHED_B)


@pytest.mark.parametrize("name", sorted(PUBLISHED_B))
def test_parameters_match_the_published_count(name: str) -> None:
    assert MODELS[name].num_parameters / 1e9 == pytest.approx(PUBLISHED_B[name], rel=0.02)
    assert MODELS[name].source.startswith("https://")


def test_active_parameters_of_mixtures_match_the_published_counts() -> None:
    assert get_model("mixtral-8x7b").active_parameters / 1e9 == pytest.approx(12.9, rel=0.02)
    assert get_model("qwen3-30b-a3b").active_parameters / 1e9 == pytest.approx(3.3, rel=0.02)
    assert get_model("llama-3-8b").active_parameters == get_model("llama-3-8b").num_parameters


def test_kv_of_a_token_follows_heads_width_and_devices() -> None:
    model = get_model("llama-3.1-8b")
    assert model.kv_bytes_per_token() == 2 * 32 * 8 * 128 * 2
    assert model.kv_bytes_per_token(1.0) == 65536
    assert model.kv_bytes_per_token(2.0, 8) == model.kv_bytes_per_token(2.0, 16) == 16384


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("llama3.1-8b", "llama-3.1-8b"),
        ("meta-llama/Llama-2-13b-chat-hf", "llama-2-13b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b"),
    ],
)
def test_names_are_forgiving(given: str, found: str) -> None:
    assert get_model(given).name == found


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'llama-3-8b'"):
        get_model("lama-3-8b")


def write(folder: Path, **changes: Any) -> Path:
    data = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def test_config_json_gives_the_same_sheet_as_the_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "my-llama")
    for path in (folder, folder / "config.json"):
        read, known = get_model(str(path)).as_dict(), get_model("llama-3.1-8b").as_dict()
        assert {k: v for k, v in read.items() if k not in ("name", "source")} == {
            k: v for k, v in known.items() if k not in ("name", "source")
        }
        assert read["name"] == "my-llama"


def test_config_json_of_a_mixture_and_of_a_nested_text_model(tmp_path: Path) -> None:
    mixture = get_model(
        str(write(tmp_path / "a", model_type="qwen3_moe", num_experts=128, num_experts_per_tok=8,
                  moe_intermediate_size=768, head_dim=64, num_key_value_heads=...))
    )  # fmt: skip
    assert (mixture.experts, mixture.experts_per_token, mixture.intermediate) == (128, 8, 768)
    assert (mixture.head_dim, mixture.kv_heads, mixture.qk_norm) == (64, 32, True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": LLAMA}))
    assert get_model(str(tmp_path / "b")).hidden == 4096


def test_sliding_window_is_read_unless_switched_off(tmp_path: Path) -> None:
    assert get_model(str(write(tmp_path, sliding_window=4096))).sliding_window == 4096
    assert get_model(str(write(tmp_path, sliding_window=4096, use_sliding_window=False))).sliding_window is None
    assert get_model(str(write(tmp_path, sliding_window=None))).sliding_window is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": ...}, "has no field 'hidden_size'"),
        ({"num_hidden_layers": 0}, "field 'num_hidden_layers' is 0; expected a whole number >= 1"),
        ({"vocab_size": "big"}, "field 'vocab_size' is 'big'"),
        ({"sliding_window": -1}, "field 'sliding_window' is -1"),
        ({"num_local_experts": 8}, "has no field 'num_experts_per_tok'"),
        ({"num_local_experts": "8x"}, "field 'num_local_experts' is '8x'"),
    ],
)
def test_wrong_fields_are_named_with_their_file(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        get_model(str(write(tmp_path, **changes)))
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{\n"hidden_size": 1,\n', "line 3: not JSON"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"[1, 2]", "expected a JSON object"),
        (b"", "not JSON"),
    ],
)
def test_files_that_are_no_configuration_get_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        get_model(str(tmp_path / "config.json"))


def test_missing_files_are_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere.json", tmp_path / "no-such-folder"):
        with pytest.raises(InputError, match="no such file"):
            get_model(str(path))


@pytest.mark.parametrize(("model", "tp"), [("llama-3-8b", 3), ("qwen2.5-7b", 8), ("smollm2-135m", 2)])
def test_heads_that_cannot_be_divided_are_refused(model: str, tp: int) -> None:
    with pytest.raises(ConfigError, match=f"tensor_parallel is {tp}"):
        get_model(model).check_tensor_parallel(tp)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "mamba"}, "'model_type' is 'mamba'"),
        ({"model_type": "t5"}, "'model_type' is 't5'"),
        (
            {"num_attention_heads": 33, "num_key_value_heads": 33},
            "expected a divisor of hidden_size 4096, or a head_dim",
        ),
        ({"num_key_value_heads": 5}, "expected a divisor of num_attention_heads 32"),
    ],
)
def test_a_configuration_that_a_sheet_cannot_describe_is_refused(
    tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=r"config\.json") as caught:
        get_model(str(write(tmp_path, **changes)))
    assert says in str(caught.value)


def test_heads_of_a_width_of_their_own_need_not_divide_the_hidden_size(tmp_path: Path) -> None:
    assert get_model(str(write(tmp_path, num_attention_heads=24, hidden_size=4100, head_dim=128))).heads == 24


def test_quantization_in_a_configuration_is_said_once_to_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path, quantization_config={"quant_method": "fp8"}))
    assert get_model(path) == get_model(path)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--weight-dtype" in said
