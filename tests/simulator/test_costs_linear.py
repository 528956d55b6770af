"""Tests of the linear cost model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.plan import StepShape
from simulator.costs import make_cost_model


def test_price_is_the_sum_of_its_terms() -> None:
    cost = make_cost_model(
        "linear:step_s=1,token_s=0.1,context_s=0.01,logits_s=0.001,request_s=0.0001,host_s=2,host_request_s=0.5"
    )
    shape = StepShape.of("ragged", [1, 1, 4], [10, 20, 2])  # 6 rows; reads 11 + 21, pairs 3 + 4 + 5 + 6
    price = cost.step_cost(shape)
    assert price.device_s == pytest.approx(1 + 0.1 * 6 + 0.01 * (32 + 18) + 0.001 * 3 + 0.0001 * 3)
    assert price.host_s == pytest.approx(2 + 0.5 * 3)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1000)), min_size=1, max_size=20))
def test_parts_sum_to_the_price(rows: list[tuple[int, int]]) -> None:
    cost = make_cost_model("linear:step_s=0.004,token_s=1e-5,context_s=1e-8,logits_s=1e-6,host_s=1e-4")
    price = cost.step_cost(StepShape.of("ragged", [n for n, _ in rows], [c for _, c in rows]))
    assert sum(price.breakdown().values()) == pytest.approx(price.device_s + price.host_s)
