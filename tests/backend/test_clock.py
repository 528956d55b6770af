"""The engine's clock: it goes on, and stands still while it is held."""

from __future__ import annotations

import time

from backend.clock import Clock


def test_no_time_passes_while_it_is_held() -> None:
    clock = Clock()
    before_s = clock.now()
    with clock.held():
        held_s = clock.now()
        time.sleep(0.6)
        assert clock.now() == held_s
    assert before_s <= held_s <= clock.now() < held_s + 0.55


def test_it_goes_on_after_an_error_within() -> None:
    clock = Clock()
    try:
        with clock.held():
            raise KeyError
    except KeyError:
        pass
    first_s = clock.now()
    time.sleep(0.01)
    assert clock.now() > first_s
