"""Figures fit their cards."""

from __future__ import annotations

import pytest

from dashboard.board.fit import fitted
from dashboard.panels import PANELS

from .runs import sample, scene


@pytest.mark.parametrize("key", list(PANELS))
def test_without_its_legend_a_figure_keeps_the_height_of_its_axes(key: str) -> None:
    figure = PANELS[key].draw(scene(sample("static"), sample("chunked")))
    before, after = figure["layout"], fitted(figure, narrow=False)["layout"]
    inner = [each["height"] - each["margin"]["t"] - each["margin"]["b"] for each in (before, after)]
    assert inner[0] == inner[1]
    assert not after["showlegend"]


def test_on_a_small_screen_the_axes_of_all_panels_line_up() -> None:
    shown = scene(sample("static"), sample("chunked"))
    sides = {
        (layout["margin"]["l"], layout["margin"]["r"])
        for layout in (fitted(panel.draw(shown), narrow=True)["layout"] for panel in PANELS.values() if panel.shares_x)
    }
    assert len(sides) == 1
