"""The panel of tokens per step."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given

from dashboard.panels.tokens import PANEL

from .runs import LOOKS, MemoryRun, array_of, runs, sample, scene, traces_named, views


@given(runs(), views())
def test_layers_add_up_to_the_mean_of_computed_tokens_and_the_largest_step_is_drawn(
    run: MemoryRun, view: dict[str, Any]
) -> None:
    shown = scene(run, **view)
    window, figure = shown.windows[0], PANEL.draw(shown)
    if not window.num_steps:
        return
    layers = [array_of(trace["y"]) for trace in figure["data"] if "stackgroup" in trace]
    np.testing.assert_allclose(sum(layers), window.outline.y(window.mean("computed_tokens")), atol=1e-6)
    if not window.exact:
        (line,) = traces_named(figure, "largest step")
        assert array_of(line["y"]).max() == window.values("computed_tokens").max()


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_a_recording_s_padding_is_drawn_by_cause_and_the_words_count_it(look: Any) -> None:
    run = sample("static")
    shown = scene(run, look=look)
    figure = PANEL.draw(shown)
    go.Figure(figure)
    steps = run.trace.steps if run.trace else None
    assert steps is not None
    padded = steps[["padding_prompt", "padding_finished_row", "padding_graph", "padding_overrun"]].sum()
    for cause in ("prompt", "finished-row", "graph", "overrun"):
        drawn = bool(traces_named(figure, f"padding: {cause}"))
        assert drawn == bool(padded[f"padding_{cause.replace('-', '_')}"])
    share = padded.sum() / steps["computed_tokens"].sum()
    assert f"{share:.1%} of them padding" in PANEL.words(shown)
    assert PANEL.table(shown)["computed_tokens"].sum() == steps["computed_tokens"].sum()
