"""Numbers as people read them: a unit that fits, three digits that count."""

from __future__ import annotations

import math

NONE = "–"


def seconds(value: float | None) -> str:
    """A duration: µs, ms, s or minutes; `NONE` where there is none."""
    if value is None or math.isnan(value):
        return NONE
    size = abs(value)
    if size >= 600:
        return f"{value / 60:,.1f} min"
    if size >= 1 or size == 0:
        return f"{digits(value)} s"
    return f"{digits(value * 1e3)} ms" if size >= 1e-3 else f"{digits(value * 1e6)} µs"


def digits(value: float | None, count: int = 3) -> str:
    """A number with so many digits that count, thousands set apart; `NONE` where there is none."""
    if value is None or math.isnan(value):
        return NONE
    if value == 0:
        return "0"
    decimals = count - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, decimals)}f}"


def percent(share: float | None) -> str:
    """A share in percent, one decimal; `NONE` where there is none."""
    return NONE if share is None or math.isnan(share) else f"{share:.1%}"


def size(number: float) -> str:
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if abs(number) < 1024:
            return f"{digits(number)} {unit}"
        number /= 1024
    return f"{digits(number)} GiB"


def unit_for(largest_s: float) -> tuple[str, float]:
    """The unit of an axis whose values reach `largest_s` seconds, and what to multiply seconds by."""
    return ("ms", 1e3) if largest_s < 1 else ("s", 1.0)
