"""The step under the cursor, in words."""

from __future__ import annotations

import numpy as np

from dashboard.board.now import now, step_sentence
from traces.schema import PADDING_COLUMNS

from .runs import MemoryRun, random_run, sample, scene


def short_run() -> MemoryRun:
    ends = np.array([0.01, 0.02])
    return MemoryRun({"step": np.arange(2), "t_start_s": ends - 0.01, "t_end_s": ends}, key="short", name="short")


def test_a_run_that_has_ended_by_then_says_so() -> None:
    told = str(now(scene(sample("chunked"), short_run(), step=300)))
    assert "had ended at 20.0 ms" in told
    told = str(now(scene(sample("chunked"), short_run(), step=300, axis="step")))
    assert "had ended at step 1" in told


def test_without_a_cursor_nothing_is_said() -> None:
    assert now(scene(sample("chunked"))) == []


def test_the_sentence_counts_what_the_step_counts() -> None:
    run = random_run(50)
    for row in range(50):
        sentence = step_sentence(run, row)
        padding = sum(int(run.column("steps", name)[row]) for name in PADDING_COLUMNS.values())
        assert (f"{padding:,} padding" in sentence) == (padding > 0)
        assert f"{int(run.column('steps', 'slots_busy')[row])} of 8 seats" in sentence
