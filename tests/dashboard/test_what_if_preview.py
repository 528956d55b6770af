"""The preview shows the very requests that will run."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest

from dashboard.runs.workload_spec import workload_of
from dashboard.what_if.preview import arrivals_figure, lengths_figure, stats_line, workload_shown
from scheduler.errors import ConfigError
from tests.dashboard.runs import LOOKS, array_of, traces_named
from traces.presets import resolve_workload

SPEC = {"kind": "preset", "name": "azure-conv", "requests": 400}


def test_it_is_the_workload_that_runs() -> None:
    assert workload_shown(SPEC, None, 3).digest() == workload_of(SPEC, seed=3).digest()
    assert workload_shown(SPEC, None, 3).digest() == resolve_workload("azure-conv", requests=400, seed=3).digest()


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_the_bars_hold_all_arrivals(look: object) -> None:
    figure = arrivals_figure(workload_of(SPEC), look)  # type: ignore[arg-type] # a Look, parametrized
    go.Figure(figure)
    assert array_of(figure["data"][0]["customdata"]).sum() == 400
    rates, width = array_of(figure["data"][0]["y"]), figure["data"][0]["width"]
    assert rates.sum() * width == pytest.approx(400)


@pytest.mark.parametrize(
    "lengths", ["constant:512", "uniform:low=100,high=130", "lognormal:mean=900,sigma=2,max=90000"]
)
def test_every_request_is_in_a_class_of_lengths(lengths: str) -> None:
    spec = {"kind": "generate", "requests": 333, "arrivals": "all-at-once", "prompt": lengths, "output": "constant:7"}
    figure = lengths_figure(workload_of(spec), LOOKS[0])
    go.Figure(figure)
    for name in ("prompt", "output"):
        heights = array_of(traces_named(figure, name)[0]["y"])
        assert heights[1::2][:-1].sum() == pytest.approx(333)
        assert np.all(np.diff(array_of(traces_named(figure, name)[0]["x"])) >= 0)


def test_requests_of_one_instant_are_said_in_words() -> None:
    made = workload_of({"kind": "generate", "requests": 5, "arrivals": "all-at-once"})
    figure = arrivals_figure(made, LOOKS[1])
    assert "All 5 requests arrive at once." in figure["layout"]["annotations"][0]["text"]
    assert stats_line(made).startswith("5 requests · all at once · ")


def test_a_wrong_spec_gets_the_sentence_of_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"kind of arrivals 'poison'.*did you mean 'poisson'"):
        workload_shown({"kind": "generate", "arrivals": "poison:rate=1"}, None, 0)
