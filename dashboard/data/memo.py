"""Values made once by whoever asks first, while the others wait: a page asks for a dozen figures at the same moment."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from .run import Run

Made = TypeVar("Made")


class Memo:
    """Values by key. What fails is not kept: the next to ask tries again."""

    def __init__(self) -> None:
        self.values: dict[Hashable, Any] = {}
        self._making: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The value of a key, made on the first call."""
        if key not in self.values:
            with self._lock:
                making = self._making.setdefault(key, threading.Lock())
            with making:
                if key not in self.values:
                    self.values[key] = make()
        return cast(Made, self.values[key])


_known: dict[int, Memo] = {}
_lock = threading.Lock()


def once(run: Run, what: str, make: Callable[[Run], Made]) -> Made:
    """What `make` says of a run, made once and kept as long as the run (by identity: not every run can be hashed)."""
    with _lock:
        memo = _known.get(id(run))
        if memo is None:
            memo = _known[id(run)] = Memo()
            weakref.finalize(run, _known.pop, id(run), None)
    return memo.get(what, lambda: make(run))
