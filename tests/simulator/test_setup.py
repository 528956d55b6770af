"""Settings become a system, or one sentence that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.errors import ConfigError
from simulator.setup import Setup


def test_blocks_are_estimated_unless_given() -> None:
    estimated = Setup.of({}).build()
    assert estimated.memory is not None
    assert estimated.config.num_blocks == estimated.memory.num_blocks
    given = Setup.of({"num_blocks": 100}).build()
    assert given.memory is None
    assert given.config.num_blocks == 100


def test_the_rtx_4090_run_has_its_blocks_within_5_percent() -> None:
    """vLLM 0.19 found 2,588 blocks for Llama-3.1-8B on that card (max_num_seqs 256, budget 2,048, utilisation 0.9)."""
    system = Setup.of({"model": "llama-3.1-8b", "hardware": "rtx-4090"}).build()
    assert system.config.num_blocks == pytest.approx(2588, rel=0.05)


def test_a_longer_context_than_the_models_own_is_the_users_choice() -> None:
    assert Setup.of({"model": "llama-3-8b"}).build().config.max_model_len == 8192
    assert Setup.of({"model": "llama-3-8b", "max_model_len": 16384}).build().config.max_model_len == 16384


def test_widths_reach_memory_and_cost_model_alike() -> None:
    wide, narrow = Setup.of({}).build(), Setup.of({"weight_dtype": "fp8", "kv_dtype": "fp8"}).build()
    assert narrow.config.num_blocks > 2 * wide.config.num_blocks
    assert narrow.cost_model.options()["weight_dtype"] == "fp8"


def test_what_describes_a_system_builds_it_again() -> None:
    settings = {"policy": "orca", "max_num_seqs": 7, "model": "qwen2.5-7b", "hardware": "l40s", "tensor_parallel": 2}
    system = Setup.of(settings).build()
    described = json.loads(json.dumps(system.describe()))
    again = Setup.of(described["settings"]).build()
    assert again.config == system.config
    assert again.cost_model.describe() == system.cost_model.describe()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"polisy": "static"}, "unknown setting 'polisy' .did you mean 'policy'"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; expected a whole number >= 1"),
        ({"max_num_seqs": 2.5}, "max_num_seqs is 2.5; expected a whole number"),
        ({"watermark": 1.5}, "watermark is 1.5; expected a fraction"),
        ({"block_size": -1}, "block_size is -1"),
        ({"layout": "flat"}, "unknown layout 'flat'"),
        ({"cost": "rooflin"}, "unknown cost model 'rooflin' .did you mean 'roofline'"),
        ({"cost": "linear"}, "cost model linear needs step_s"),
        ({"hardware": "a100-80g"}, "did you mean 'a100-80gb'"),
        ({"model": "llama-3.1-405b-"}, "unknown model"),
        ({"model": "llama-3.1-70b", "hardware": "l4"}, "does not fit on 1 x l4"),
        ({"tensor_parallel": 3}, "tensor_parallel"),
        ({"gpu_memory_utilization": 1.2}, "gpu_memory_utilization is 1.2"),
    ],
)
def test_a_wrong_setting_gets_a_sentence_that_names_it(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Setup.of(settings).build()


def test_a_model_may_be_a_hugging_face_config(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
        "max_position_embeddings": 4096, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Setup.of({"model": str(tmp_path / "config.json")}).build().config.max_model_len == 4096
