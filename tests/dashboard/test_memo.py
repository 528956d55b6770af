from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dashboard.data.memo import Memo


def test_those_who_ask_together_get_what_was_made_once() -> None:
    memo, made, together = Memo(), [], threading.Barrier(4)

    def make() -> int:
        made.append(1)
        return 7

    def ask() -> int:
        together.wait(10)
        return memo.get("x", make)

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask) for _ in range(4)]
        assert [answer.result() for answer in answers] == [7] * 4
    assert made == [1]


def test_what_fails_is_tried_again() -> None:
    memo = Memo()
    with pytest.raises(ZeroDivisionError):
        memo.get("x", lambda: 1 // 0)
    assert memo.get("x", lambda: 7) == 7


def test_making_a_value_may_ask_for_others() -> None:
    memo = Memo()
    assert memo.get("sum", lambda: memo.get("one", lambda: 1) + 1) == 2
