"""Rows of the request table: figures of the trace; filters, order and pages as pandas gives them."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.data.request_rows import COLUMNS, MOST_ROWS, csv_of, page_of, rows_of

from .runs import HOSTILE, MemoryRun, sample, steps_of


def test_figures_are_those_of_the_trace() -> None:
    run = sample("chunked")
    assert run.trace is not None
    known, rows = run.trace.requests, rows_of(run)
    assert list(rows.columns) == list(COLUMNS)
    assert rows["ttft"].to_numpy() == pytest.approx((known["first_token_s"] - known["arrival_s"]).to_numpy())
    assert rows["finish"].tolist() == known["finish_reason"].tolist()
    assert rows["arrival"].min() == 0


def many(number: int = 1200, seed: int = 0) -> MemoryRun:
    draw = np.random.default_rng(seed)
    arrival = np.sort(draw.random(number))
    requests = {
        "request": np.arange(number), "arrival_s": arrival, "scheduled_s": arrival + draw.random(number),
        "first_token_s": np.where(draw.random(number) < 0.1, np.nan, arrival + draw.random(number)),
        "finished_s": arrival + 2, "prompt_tokens": draw.integers(1, 50, number),
        "output_tokens": draw.integers(0, 9, number), "finish_reason": draw.integers(0, 5, number),
    }  # fmt: skip
    return MemoryRun(steps_of(3), requests=requests, names={1: HOSTILE, 2: "=SUM(A1)"})


RUN = many()


@given(
    st.sampled_from(("prompt", "ttft", "e2e", "output")),
    st.sampled_from(("greaterThan", "lessThan", "equals", "inRange")),
    st.integers(0, 50),
    st.sampled_from(tuple(COLUMNS)),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_pages_hold_what_passes_in_the_order_asked_for(name: str, kind: str, low: int, by: str, falling: bool) -> None:
    frame = rows_of(RUN)
    asked = {
        "startRow": 0, "endRow": 400, "filterModel": {name: {"type": kind, "filter": low, "filterTo": low + 5}},
        "sortModel": [{"colId": by, "sort": "desc" if falling else "asc"}],
    }  # fmt: skip
    query = {"greaterThan": f"{name} > {low}", "lessThan": f"{name} < {low}", "equals": f"{name} == {low}",
             "inRange": f"{low} <= {name} <= {low + 5}"}[kind]  # fmt: skip
    expected = frame.query(query).sort_values(by, ascending=not falling, kind="stable")
    page = page_of(RUN, asked)
    assert page.matching == len(expected)
    assert [row["request"] for row in page.rows] == expected["request"].tolist()[:400]


def test_text_is_searched_as_text_in_any_case() -> None:
    for text, kind, matching in (("SCRIPT>alert(1)", "contains", 1), (".*", "contains", 0), ("=s", "startsWith", 1)):
        assert page_of(RUN, {"filterModel": {"name": {"type": kind, "filter": text}}}).matching == matching


def test_conditions_are_joined_by_and_or_or() -> None:
    conditions = [{"type": "lessThan", "filter": 5}, {"type": "greaterThan", "filter": 45}]
    frame = rows_of(RUN)
    either = page_of(RUN, {"filterModel": {"prompt": {"operator": "OR", "conditions": conditions}}})
    assert either.matching == ((frame["prompt"] < 5) | (frame["prompt"] > 45)).sum()
    assert page_of(RUN, {"filterModel": {"prompt": {"operator": "AND", "conditions": conditions}}}).matching == 0


def test_missing_figures_are_null_and_can_be_searched_for() -> None:
    page = page_of(RUN, {"endRow": 500, "filterModel": {"ttft": {"type": "blank"}}})
    assert page.matching == rows_of(RUN)["ttft"].isna().sum() > 0
    assert all(row["ttft"] is None for row in page.rows)
    assert json.dumps(page.rows, allow_nan=False)


WORDS = st.sampled_from(("ttft", "name", "type", "filter", "conditions", "colId", "operator", "contains", "inRange"))
NONSENSE = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(NONSENSE)
@settings(max_examples=150, deadline=None)
def test_nonsense_from_a_browser_never_fails_and_never_gets_more_than_a_page(model: Any) -> None:
    asked = {"startRow": model, "endRow": 10**9, "filterModel": model, "sortModel": model}
    assert len(page_of(RUN, asked).rows) <= MOST_ROWS


def test_csv_gives_the_whole_table_back_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_of(rows_of(RUN)))))
    assert len(rows) == 1200
    assert rows[1]["name"] == HOSTILE
    assert rows[2]["name"] == "'=SUM(A1)"
    back = pd.read_csv(io.StringIO(csv_of(rows_of(RUN))))
    assert math.isclose(back["e2e"].sum(), rows_of(RUN)["e2e"].sum())
