from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from click.testing import CliRunner
from dash import html
from plotly.offline import get_plotlyjs

from dashboard.cli_report import report
from dashboard.panels import PANELS
from dashboard.report import write_report
from dashboard.report_page.markup import markup
from scheduler.errors import ConfigError, InputError, UserError
from simulator import simulate
from tests.conftest import ROOT
from traces.trace import Trace
from traces.workload import Workload

SAMPLES = ROOT / "traces" / "samples"
HOSTILE = "</script><script>document.title='caught'</script><img src=x onerror=document.title='caught'>"
WriteOver = Callable[..., str]


@pytest.fixture
def written(tmp_path: Path) -> WriteOver:
    def write(*traces: Path, theme: str = "light", title: str | None = None) -> str:
        write_report(traces, tmp_path / "report.html", theme=theme, title=title)
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return write


class Elements(HTMLParser):
    """Start tags of a page with their attributes, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


def figures_in(page: str) -> dict[str, dict[str, object]]:
    found = re.findall(r'<script type="application/json" id="figure-([\w-]+)">(.*?)</script>', page, re.DOTALL)
    return {key: json.loads(text) for key, text in found}


def policy_of(page: str) -> str:
    return next(str(found["content"]) for tag, found in Elements(page).tags if found.get("http-equiv"))


def named_run(path: Path, name: str) -> Path:
    names = np.array([name, "plain"])
    workload = Workload(np.array([0.0, 0.1]), np.array([20, 30]), np.array([5, 6]), request_ids=names)
    simulate(workload, out=path, policy="chunked", model="llama-3.1-8b", hardware="a100-80gb")
    return path


def test_every_panel_is_in_it_with_question_and_words(written: WriteOver) -> None:
    page = written(SAMPLES / "chunked.trace")
    figures, text = figures_in(page), Elements(page).text
    assert list(figures) == list(PANELS)
    for figure in figures.values():
        go.Figure(figure)
    for panel in PANELS.values():
        assert panel.title in text
        assert panel.question in text


def test_it_holds_the_library_once_and_asks_nobody(written: WriteOver) -> None:
    page = written(SAMPLES / "chunked.trace", SAMPLES / "static.trace")
    assert page.count(get_plotlyjs()[:2000]) == 1
    for _, attributes in Elements(page).tags:
        assert "src" not in attributes
        assert "href" not in attributes
    assert re.match(
        r"default-src 'none'; script-src ('sha256-[\w+/=]+' ?){2}; style-src 'unsafe-inline'; ", policy_of(page)
    )
    assert len(page.encode()) < 8_000_000


def test_the_same_traces_give_the_same_bytes(written: WriteOver) -> None:
    traces = SAMPLES / "chunked.trace", SAMPLES / "chunked-simulated.trace"
    assert written(*traces) == written(*traces)


def test_each_run_says_whether_it_was_measured(written: WriteOver) -> None:
    page = written(SAMPLES / "chunked.trace", SAMPLES / "chunked-simulated.trace")
    heads = re.findall(r'<div class="run-head"><h3[^>]*>([^<]*)</h3><span class="badge (\w+)">(\w+)</span>', page)
    assert heads == [("A · chunked", "measured", "measured"), ("B · chunked-simulated", "simulated", "simulated")]


def test_the_slowest_request_comes_first(written: WriteOver) -> None:
    trace = Trace.open(SAMPLES / "static.trace")
    requests = trace.requests
    slowest = requests.loc[(requests["finished_s"] - requests["arrival_s"]).idxmax()]
    rows = re.findall(r"<tbody>\s*<tr><td>([^<]*)</td>", written(trace.path))
    assert rows == [slowest["name"]]


def test_names_stay_text(tmp_path: Path, written: WriteOver) -> None:
    page = written(named_run(tmp_path / "named.trace", HOSTILE), title=HOSTILE)
    elements = Elements(page)
    assert HOSTILE in elements.text
    assert not [tag for tag, _ in elements.tags if tag == "img"]
    assert len([tag for tag, _ in elements.tags if tag == "script"]) == len(PANELS) + 2


def test_half_a_surrogate_pair_does_not_stop_it(written: WriteOver) -> None:
    assert "&#55296;" in written(SAMPLES / "chunked.trace", title="half \ud800")


def test_the_theme_is_that_of_its_figures(written: WriteOver) -> None:
    page = written(SAMPLES / "chunked.trace", theme="dark")
    assert '<html lang="en" data-theme="dark"' in page
    assert figures_in(page)["tokens"]["layout"]["font"]["color"] == "#e6edf3"  # type: ignore[index]  # JSON


def test_it_tells_the_command_that_makes_it(written: WriteOver) -> None:
    text = Elements(written(SAMPLES / "chunked.trace", theme="dark", title="a b")).text
    assert re.search(r"batchscope report \S+chunked\.trace -o \S+report\.html --theme dark --title 'a b'", text)


@pytest.mark.parametrize("count", [0, 5])
def test_one_to_four_traces(tmp_path: Path, count: int) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 4"):
        write_report([SAMPLES / "chunked.trace"] * count, tmp_path / "x.html")


def test_mistakes_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such trace"):
        write_report([tmp_path / "none.trace"], tmp_path / "x.html")
    with pytest.raises(UserError, match="there is no folder"):
        write_report([SAMPLES / "chunked.trace"], tmp_path / "none" / "x.html")
    with pytest.raises(ConfigError, match="theme"):
        write_report([SAMPLES / "chunked.trace"], tmp_path / "x.html", theme="blue")
    assert not list(tmp_path.iterdir())


def test_the_command_tells_what_it_wrote(tmp_path: Path) -> None:
    out = tmp_path / "x.html"
    done = CliRunner().invoke(report, [str(SAMPLES / "chunked.trace"), "-o", str(out), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "traces": [str(SAMPLES / "chunked.trace")], "written": str(out), "bytes": out.stat().st_size,
    }  # fmt: skip


def test_it_never_writes_into_a_trace_that_it_reads() -> None:
    trace = SAMPLES / "chunked.trace"
    done = CliRunner().invoke(report, [str(trace), "-o", str(trace / "meta.json")])
    assert isinstance(done.exception, ConfigError)


def test_components_become_html() -> None:
    part = html.Div(
        [html.Span("a < b", className="x y", title='"quoted"', **{"aria-label": "l"}), None, 3, html.Br()],
        style={"overflowX": "auto"},
    )
    assert markup(part) == (
        '<div style="overflow-x: auto"><span class="x y" title="&quot;quoted&quot;" aria-label="l">a &lt; b</span>'
        "3<br></div>"
    )


def test_components_that_need_a_browser_are_refused() -> None:
    import dash_mantine_components as dmc

    with pytest.raises(TypeError, match=r"dash\.html"):
        markup(html.Div(dmc.Text("x")))
