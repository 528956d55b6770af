"""What a panel is: one question about runs, answered by a figure, by words and by a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dashboard.look import Figure
from dashboard.scene import Scene

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        key: its name in addresses and ids.
        title: a few words.
        question: what a reader learns from it, one line.
        draw: its figure.
        words: the same in a sentence or two, for those who do not see the figure.
        table: what the figure shows as rows, at full resolution of the view.
        shares_x: x is the axis of the view, so that zoom and cursor hold for it.
        follows_cursor: it shows the step under the cursor.
    """

    key: str
    title: str
    question: str
    draw: Callable[[Scene], Figure]
    words: Callable[[Scene], str]
    table: Callable[[Scene], pd.DataFrame]
    shares_x: bool = True
    follows_cursor: bool = False
