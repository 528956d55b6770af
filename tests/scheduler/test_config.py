"""Settings are checked where they enter; what is wrong is said in one sentence that names the setting."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import ConfigError, SchedulerConfig
from scheduler.errors import InputError, UserError, unknown_name


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_num_seqs", 0, "whole number >= 1"),
        ("max_num_seqs", 2.5, "whole number >= 1"),
        ("max_num_seqs", True, "whole number >= 1"),
        ("max_num_seqs", "8", "whole number >= 1"),
        ("max_num_batched_tokens", -1, "whole number >= 1"),
        ("max_model_len", 1, "whole number >= 2"),
        ("num_blocks", 1, "whole number >= 2"),
        ("block_size", 0, "whole number >= 1"),
        ("long_prefill_token_threshold", -1, "whole number >= 0"),
        ("watermark", -0.1, "number >= 0"),
        ("watermark", 1.0, "watermark < 1"),
        ("watermark", float("nan"), "number >= 0"),
        ("batch_timeout_s", float("inf"), "number >= 0"),
        ("batch_timeout_s", None, "number >= 0"),
        ("model_len_margin", 8191, "max_model_len - 1"),
        ("cudagraph_capture_sizes", (4, 2), "rising whole numbers"),
        ("cudagraph_capture_sizes", (2, 2), "rising whole numbers"),
        ("cudagraph_capture_sizes", (0, 2), "rising whole numbers"),
        ("cudagraph_capture_sizes", (1.5, 2), "rising whole numbers"),
        ("cudagraph_capture_sizes", "8", "rising whole numbers"),
        ("cudagraph_capture_sizes", 8, "rising whole numbers"),
        ("eos_token_ids", ("a",), "whole numbers"),
        ("eos_token_ids", 2.5, "whole numbers"),
        ("enable_prefix_caching", "false", "true or false"),
        ("enable_chunked_prefill", 2, "true or false"),
        ("async_scheduling", "yes", "true or false"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_is_accepted(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SchedulerConfig(**{name: value})
    sentence = str(caught.value)
    assert name in sentence
    assert expected in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("name", ["layout", "scheduling_policy", "kv_memory", "padding_side", "release"])
def test_an_unknown_choice_is_named_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown {name} 'nonsense'.*known: "):
        SchedulerConfig().replaced(**{name: "nonsense"})


def test_the_nearest_choice_is_suggested() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ragged'"):
        SchedulerConfig(layout="raged")  # type: ignore[arg-type] # the mistake is the point
    assert "did you mean" not in str(unknown_name("policy", "zzz", ["chunked"]))


def test_settings_can_be_changed_by_name_and_are_checked_again() -> None:
    config = SchedulerConfig().replaced(max_num_seqs=4)
    assert (config.max_num_seqs, config.block_size) == (4, 16)
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        config.replaced(max_num_seq=4)
    with pytest.raises(ConfigError, match="block_size"):
        config.replaced(block_size=0)


def test_lists_become_tuples_so_that_a_config_can_be_a_key() -> None:
    config = SchedulerConfig(cudagraph_capture_sizes=[1, 2], eos_token_ids=[2])  # type: ignore[arg-type] # as from YAML
    assert config.cudagraph_capture_sizes == (1, 2)
    assert config.eos_token_ids == (2,)
    assert hash(config) == hash(config.replaced())


def test_derived_figures() -> None:
    config = SchedulerConfig(num_blocks=10, max_model_len=64, model_len_margin=1)
    assert (config.usable_blocks, config.length_cap) == (9, 63)


def test_an_input_error_names_file_and_line() -> None:
    assert str(InputError("x is -3; expected >= 1", path="a.csv", line=7)) == "a.csv, line 7: x is -3; expected >= 1"
    assert str(InputError("is empty", path="a.csv")) == "a.csv: is empty"
    assert str(InputError("is empty")) == "is empty"
    assert isinstance(InputError("x"), UserError)


@pytest.mark.parametrize(
    "name", ["max_num_seqs", "max_model_len", "num_blocks", "max_num_batched_tokens", "block_size"]
)
def test_a_slip_of_the_pen_is_told_with_the_range(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is 99999999999; expected a whole number from \d to [\d,]+$"):
        SchedulerConfig(**{name: 99_999_999_999})
