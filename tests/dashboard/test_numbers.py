"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from dashboard.numbers import digits, percent, seconds, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"), (2.5e-6, "2.50 µs"), (0.0123, "12.3 ms"), (0.9996, "1,000 ms"), (1.0, "1.00 s"),
        (59.94, "59.9 s"), (599.0, "599 s"), (600.0, "10.0 min"), (-0.5, "-500 ms"), (None, "–"), (math.nan, "–"),
    ],
)  # fmt: skip
def test_durations_have_a_unit_that_fits(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (1234567, "1,234,567"), (12.345, "12.3"), (0.001234, "0.00123")])
def test_three_digits_count(value: float, text: str) -> None:
    assert digits(value) == text


def test_shares_and_sizes() -> None:
    assert [percent(0.1234), percent(None)] == ["12.3%", "–"]
    assert [size(0), size(2048), size(3 << 30)] == ["0 B", "2.00 KiB", "3.00 GiB"]
