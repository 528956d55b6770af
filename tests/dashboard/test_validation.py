"""A run that was compared with a measured one: what Replay and the report show of it, and what they refuse."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard.against.cards import TITLE, cards
from dashboard.against.figure import MOST_POINTS, figure
from dashboard.against.words import badges, latency_table, sentences, totals_table
from dashboard.data.run import TraceRun
from dashboard.look import DARK, LIGHT
from dashboard.report import write_report
from dashboard.report_page.markup import markup
from dashboard.scene import Scene
from dashboard.view import View
from scheduler.errors import InputError
from simulator.validate import validate
from tests.conftest import ROOT
from tests.dashboard.runs import HOSTILE
from traces.sound import open_checked
from traces.trace import Trace
from traces.validation import read_validation, write_validation

SAMPLE = ROOT / "traces" / "samples" / "chunked.trace"
Result = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample's forecast, with its comparison beside it."""
    out = tmp_path_factory.mktemp("against") / "forecast.trace"
    validate(SAMPLE, cost="linear:step_s=0.01", out=out)
    return out


@pytest.fixture
def result(folder: Path) -> Result:
    found = read_validation(folder)
    assert found is not None
    return found


def scene_of(*folders: Path) -> Scene:
    runs = tuple(TraceRun(path.stem, path.stem, Trace.open(path)) for path in folders)
    return Scene(runs, View(runs=tuple(run.key for run in runs)))


def texts(component: Any) -> Iterator[str]:
    """All text in a component and what is in it."""
    if isinstance(component, list | tuple):
        for each in component:
            yield from texts(each)
    elif isinstance(component, str):
        yield component
    elif component is not None:
        yield from texts(getattr(component, "children", None))


def test_a_run_with_a_comparison_has_a_card_and_others_have_none(folder: Path) -> None:
    shown = cards(scene_of(SAMPLE, folder))
    assert len(shown) == 1
    told = " ".join(texts(shown[0]))
    for text in (TITLE, "B · forecast (simulated)", "measured", "by batchscope", "cost model linear", "TTFT", "p99"):
        assert text in told


def test_curves_are_those_that_were_compared(result: Result) -> None:
    drawn = figure(result, LIGHT)
    assert drawn is not None
    assert [(trace["name"], trace["yaxis"]) for trace in drawn["data"]] == [
        (side, axis) for axis in ("y", "y2", "y3") for side in ("measured", "simulated")
    ]
    first = np.frombuffer(base64.b64decode(drawn["data"][0]["y"]["bdata"]), dtype="<f8")
    assert first.tolist() == result["series"]["measured"]["running"]
    assert [bool(trace["line"].get("dash")) for trace in drawn["data"]] == [False, True] * 3
    dark = figure(result, DARK)
    assert dark is not None
    assert dark["data"][0]["line"]["color"] != drawn["data"][0]["line"]["color"]


def test_a_state_that_was_not_recorded_has_no_row(result: Result) -> None:
    result["series"]["measured"]["kv_percent"] = None
    drawn = figure(result, LIGHT)
    assert drawn is not None
    assert len(drawn["data"]) == 4
    assert figure({**result, "series": None}, LIGHT) is None


def test_long_curves_keep_their_peaks(result: Result) -> None:
    count = 50_000
    values = np.zeros(count)
    values[31_007] = 99.0
    curves = dict.fromkeys(("running", "waiting", "kv_percent"), values.tolist())
    series = {"t_s": list(range(count)), "measured": curves, "simulated": curves, "rmse": dict.fromkeys(curves, 0.0)}
    drawn = figure({**result, "series": series}, LIGHT)
    assert drawn is not None
    shown = np.frombuffer(base64.b64decode(drawn["data"][0]["y"]["bdata"]), dtype="<f8")
    assert len(shown) <= MOST_POINTS
    assert shown.max() == 99.0


def test_tables_hold_each_figure_with_its_error(result: Result) -> None:
    entry = {"measured": 0.25, "simulated": 0.24, "error": -0.04}
    bounds = {"measured": None, "low": 0.1, "high": None, "simulated": 0.05, "error": None, "inside": False}
    table = markup(latency_table({**result, "latency": {"ttft_s": {"mean": entry, "p99": bounds}, "itl_s": None}}))
    for text in ("TTFT", "250 ms", "−4.00%", "100 ms to more", "50.0 ms, outside"):
        assert text in table
    assert "ITL" not in table
    totals = markup(
        totals_table({**result, "run": {"makespan_s": {"measured": 10.0, "simulated": 11.0, "error": 0.1}}})
    )
    assert "Makespan" in totals
    assert "+10.00%" in totals


def test_extrapolated_steps_and_what_was_not_recorded_are_said(result: Result) -> None:
    result["extrapolation"] = {"steps": 1200, "reason": "more decodes than were profiled"}
    told = sentences(result | {"not_recorded": ["itl_s", "waiting"], "notes": ["times are the client's"]})
    assert "1,200 steps were priced beyond the cost model's data: more decodes than were profiled." in told
    assert "Not recorded: ITL, waiting requests." in told
    assert "Times are the client's." in told


def test_the_report_holds_the_comparison(folder: Path, tmp_path: Path) -> None:
    write_report([folder], tmp_path / "with.html")
    text = (tmp_path / "with.html").read_text()
    assert text.count(f"<h2>{TITLE}</h2>") == 1
    drawn = text.partition('id="figure-against-a">')[2].partition("</script>")[0]
    assert len(json.loads(drawn)["data"]) == 6
    write_report([SAMPLE], tmp_path / "without.html")
    assert TITLE not in (tmp_path / "without.html").read_text()


def test_hostile_names_stay_text(folder: Path, result: Result, tmp_path: Path) -> None:
    named = result | {"name": HOSTILE, "measured_by": HOSTILE, "notes": [HOSTILE]}
    assert "<script>" not in markup(badges(named))
    copy = shutil.copytree(folder, tmp_path / "evil.trace")
    write_validation(copy, named)
    write_report([copy], tmp_path / "evil.html")
    assert "<script>alert" not in (tmp_path / "evil.html").read_text()


@pytest.mark.parametrize(
    "broken",
    [
        "{", "[]", "{}", '{"version": 2}', '{"version": 1}', "NaN",
    ],
)  # fmt: skip
def test_what_is_no_comparison_is_refused_in_one_sentence(broken: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "validation.json").write_text(broken)
    with pytest.raises(InputError, match="expected what validate wrote") as error:
        read_validation(tmp_path)
    assert "\n" not in str(error.value)


def change(result: Result, *path: str, to: Any) -> Result:
    copy = json.loads(json.dumps(result))
    at = copy
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = to
    return dict(copy)


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("name",), 5),
        (("cost_model",), {}),
        (("notes",), [1]),
        (("latency",), None),
        (("latency", "ttft_s"), {"mean": {"measured": "x"}}),
        (("latency", "ttft_s", "mean", "simulated"), None),
        (("run",), []),
        (("series", "t_s"), [1]),
        (("series", "simulated", "running"), None),
        (("series", "rmse"), None),
        (("extrapolation",), 3),
    ],
)
def test_every_part_that_a_page_shows_is_checked(
    path: tuple[str, ...], to: Any, result: Result, tmp_path: Path
) -> None:
    (tmp_path / "validation.json").write_text(json.dumps(change(result, *path, to=to)))
    with pytest.raises(InputError, match="expected what validate wrote"):
        read_validation(tmp_path)


def test_a_broken_comparison_becomes_a_sentence_on_the_page(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "cut.trace")
    (copy / "validation.json").write_text("{")
    assert "is not whole JSON" in " ".join(texts(cards(scene_of(copy))))
    assert open_checked(copy).meta["source"] == "simulated"  # the run itself can be looked at


def test_a_link_in_place_of_the_comparison_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "link.trace")
    (copy / "validation.json").unlink()
    (copy / "validation.json").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match=r"validation\.json is no plain file"):
        open_checked(copy)
