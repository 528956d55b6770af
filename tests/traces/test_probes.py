"""The probe in a trace's meta: read, averaged around a moment, and refused where it makes no sense."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import InputError
from traces.probes import META, WINDOW_S, probes_of, seconds_around, steadiness
from traces.samples import sample_path
from traces.trace import Trace


def with_probe(tmp_path: Path, told: Any) -> Trace:
    """A recording whose meta tells of a probe."""
    path = tmp_path / "run.trace"
    shutil.copytree(sample_path("chunked"), path)
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, META: told}))
    return Trace.open(path)


def test_probes_come_in_the_order_of_time(tmp_path: Path) -> None:
    trace = with_probe(tmp_path, {"t_s": [3, 1, 2], "seconds": [0.3, 0.1, 0.2]})
    times_s, seconds = probes_of(trace)
    assert (times_s.tolist(), seconds.tolist()) == ([1, 2, 3], [0.1, 0.2, 0.3])
    assert steadiness(trace) == {"runs": 3, "min_s": 0.1, "median_s": 0.2, "max_s": 0.3, "drift": pytest.approx(2.0)}


@pytest.mark.parametrize(
    "told",
    [
        7,
        "fast",
        [1, 2],
        {"t_s": [1]},
        {"t_s": [1], "seconds": []},
        {"t_s": [1], "seconds": [0]},
        {"t_s": [1], "seconds": ["x"]},
        {"t_s": [[1]], "seconds": [[1]]},
        {"t_s": [1, 2], "seconds": [1, None]},
    ],
)
def test_what_is_no_probe_is_refused_in_one_sentence(tmp_path: Path, told: Any) -> None:
    with pytest.raises(InputError, match=r"meta\.json: probe is no list of times"):
        probes_of(with_probe(tmp_path, told))


moments = st.lists(st.floats(0, 20), min_size=1, max_size=30).map(sorted)


@given(moments, moments, st.data())
def test_around_a_moment_the_probe_took_the_mean_of_its_neighbours_or_what_the_nearest_took(
    times_s: list[float], at_s: list[float], data: st.DataObject
) -> None:
    seconds = data.draw(st.lists(st.floats(0.01, 1), min_size=len(times_s), max_size=len(times_s)))
    found = seconds_around(np.array(times_s), np.array(seconds), np.array(at_s))
    for moment, value in zip(at_s, found.tolist(), strict=True):
        low, high = moment - WINDOW_S / 2, moment + WINDOW_S / 2
        near = [s for t, s in zip(times_s, seconds, strict=True) if low <= t < high]
        away = min(abs(t - moment) for t in times_s)
        nearest = [s for t, s in zip(times_s, seconds, strict=True) if abs(t - moment) == away]
        assert value == pytest.approx(np.mean(near)) if near else value in nearest
