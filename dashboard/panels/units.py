"""Units of axes, and counts of things."""

from __future__ import annotations


def unit_for(largest_s: float) -> tuple[str, float]:
    """The unit of an axis whose values reach `largest_s` seconds, and what to multiply seconds by."""
    return ("ms", 1e3) if largest_s < 1 else ("s", 1.0)


def count(number: int, thing: str) -> str:
    """``1 request``, ``4,512 requests``."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
