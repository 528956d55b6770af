"""Sampling parameters: what is accepted, and what is said of what is not."""

from __future__ import annotations

from typing import Any

import pytest

from backend.sampling import SamplingParams
from scheduler.errors import ConfigError

NAN, INF = float("nan"), float("inf")


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.max_tokens, params.min_tokens) == (1, 16, 0)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert params.skip_special_tokens
    assert not params.greedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", 1.5), ("n", True), ("max_tokens", 0), ("max_tokens", "16"), ("min_tokens", -1),
        ("temperature", -0.1), ("temperature", NAN), ("temperature", INF), ("temperature", "hot"), ("top_k", -2),
        ("top_k", 1.5), ("top_p", 0), ("top_p", 1.01), ("top_p", NAN), ("min_p", -0.1), ("min_p", 1.1),
        ("seed", 2**64), ("seed", -(2**63) - 1), ("seed", 1.0), ("logprobs", 21), ("logprobs", -1), ("ignore_eos", 1),
        ("include_stop_str_in_output", None), ("skip_special_tokens", "yes"), ("stop", ("",)), ("stop", 7),
        ("stop", (7,)), ("stop_token_ids", (-1,)), ("stop_token_ids", ("a",)), ("stop_token_ids", 3),
        ("temperature", None),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_naming_the_field_and_what_is_expected(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{field} is .*; expected "):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", None), ("top_k", -1), ("top_p", 1), ("min_p", 1), ("seed", -1), ("seed", 2**64 - 1),
        ("temperature", 0), ("logprobs", 0), ("logprobs", 20),
    ],
)  # fmt: skip
def test_the_ends_of_the_ranges_are_accepted(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_one_stop_string_or_a_list_of_them_becomes_a_tuple() -> None:
    one: Any = "end"
    many: Any = ["a", "b"]
    assert SamplingParams(stop=one).stop == ("end",)
    assert SamplingParams(stop=many).stop == ("a", "b")


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    with pytest.raises(ConfigError, match="min_tokens is 5; expected at most max_tokens, 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=5, max_tokens=None).min_tokens == 5


def test_temperatures_too_small_to_divide_by_are_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=9e-6).greedy
    assert not SamplingParams(temperature=2e-5).greedy
