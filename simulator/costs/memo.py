"""A function of a whole number that remembers its values."""

from __future__ import annotations

from collections.abc import Callable


class Memo(dict[int, float]):
    """Seconds (or whatever) by count; a hit is one dictionary lookup."""

    def __init__(self, function: Callable[[int], float]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: int) -> float:
        value = self[key] = self._function(key)
        return value
