"""What a panel draws: some runs, the part of them in view, in a theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .data.run import Run
from .data.window import Window, end_of, row_at, row_of_step, span_in_view, step_edges
from .look import LIGHT, RUN_NAMES, Look
from .view import View


@dataclass(frozen=True)
class Scene:
    """Runs as a view shows them."""

    runs: tuple[Run, ...]
    view: View
    look: Look = LIGHT

    @cached_property
    def span(self) -> tuple[float, float]:
        """The part of x in view."""
        return span_in_view(self.runs, self.view)

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """The steps in view of each run."""
        return tuple(Window.of(run, self.view, self.span) for run in self.runs)

    @cached_property
    def cursor_rows(self) -> tuple[int | None, ...]:
        """Row of the step under the cursor in each run; None where there is none, or the run has ended by then.

        The cursor is a step of the first run; on a time axis the others show what they did at that moment.
        """
        if self.view.step is None or not self.runs:
            return tuple(None for _ in self.runs)
        first = row_of_step(self.runs[0], self.view.step)
        if first is None:
            return tuple(None for _ in self.runs)
        x = float(step_edges(self.runs[0], self.view.axis)[0][first])
        return (first, *(None if x >= end_of(run, self.view.axis) else row_at(run, self.view.axis, x)
                         for run in self.runs[1:]))  # fmt: skip

    def label(self, index: int) -> str:
        """What a figure calls a run: its letter where there are several, and its name."""
        return run_label(self.runs, index)


def run_label(runs: Sequence[Run], index: int) -> str:
    """A run's letter, where there are several, and its name with what it is."""
    run = runs[index]
    letter = f"{RUN_NAMES[index]} · " if len(runs) > 1 else ""
    return f"{letter}{run.name} ({run.source})"
