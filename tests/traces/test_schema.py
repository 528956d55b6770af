"""The tables are what they say, and the documentation says the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scheduler.plan import FACTS
from scheduler.request import FinishReason
from traces import schema

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "trace-format.md"


@pytest.mark.parametrize("table", schema.RECORDED.values(), ids=lambda table: table.name)
def test_numpy_and_struct_agree_on_every_row(table: schema.Table) -> None:
    values = [number + 1 for number in range(len(table.columns))]
    row = table.packer.pack(*values)
    assert len(row) == table.dtype.itemsize == table.packer.size
    assert list(np.frombuffer(row, dtype=table.dtype)[0].item()) == values


def test_steps_take_a_plans_facts_in_the_order_in_which_it_keeps_them() -> None:
    facts = [{"padding_finished": "padding_finished_row"}.get(name, name) for name in FACTS]
    assert schema.STEPS.names[6:-3] == facts


def test_codes_cover_all_reasons_and_padding_columns_exist() -> None:
    assert set(schema.FINISH_REASONS) == {"none", *(reason.value for reason in FinishReason)}
    assert set(schema.PADDING_COLUMNS.values()) <= set(schema.STEPS.names)
    assert schema.SPAN_KINDS[schema.DECODE] == "decode"
    assert schema.PLAN_EVENTS[schema.LOST_SEAT] == "preempted"


@pytest.mark.parametrize("table", [*schema.READABLE.values(), schema.SPAN_EVENTS], ids=lambda table: table.name)
def test_every_column_is_documented_as_the_schema_has_it(table: schema.Table) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [c.name for c in table.columns if f"| `{c.name}` | {c.type} | {c.meaning} |" not in text]
    assert missing == []


@pytest.mark.parametrize("names", schema.CODES.values(), ids=schema.CODES)
def test_every_code_is_documented(names: tuple[str, ...]) -> None:
    assert ", ".join(f"{code} `{name}`" for code, name in enumerate(names)) in DOCUMENT.read_text(encoding="utf-8")
