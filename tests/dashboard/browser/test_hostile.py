"""What people who mean no good send: script in names, keys that are paths. It stays text, and gets one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page

from dashboard.pages import PAGES
from simulator import simulate
from traces.workload import Workload

from .conftest import OpenPage
from .driving import plot, set_cursor, settled
from .machines import dashboard

SCRIPT = "<script>window.__hacked = 1</script>"
IMAGE = "<img src=x onerror='window.__hacked = 2'>"
LINK = "<a href='javascript:window.__hacked = 3'>here</a>"


@pytest.fixture(scope="module")
def hostile_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard over a trace whose requests and folder are called as nobody should be."""
    folder = tmp_path_factory.mktemp("hostile")
    names = np.array([f"{at} {text}" for at, text in enumerate([SCRIPT, IMAGE, LINK] * 4)])
    arrival_s = np.linspace(0.0, 1.0, len(names), dtype=np.float64)
    tokens = np.full(len(names), 40)
    workload = Workload(arrival_s, tokens, tokens, request_ids=names, name=IMAGE)
    trace = folder / f"{IMAGE.replace('/', ' ')}.trace"
    simulate(workload, out=trace, max_num_seqs=4, num_blocks=12, plans=True)
    with dashboard(folder / "runs", trace) as url:
        yield url


def unharmed(page: Page) -> None:
    assert page.evaluate("window.__hacked") is None
    assert page.locator("main script, main img[onerror]").count() == 0


def test_script_in_the_names_of_requests_and_runs_stays_text_on_every_panel(
    open_page: OpenPage, hostile_url: str
) -> None:
    page = open_page(hostile_url + "/replay?by=requests")
    settled(page)
    for key in page.eval_on_selector_all(".card[data-key]", "(cards) => cards.map((card) => card.dataset.key)"):
        plot(page, key)
        settled(page)
        box = page.locator(f"#card-{key} .js-plotly-plot").bounding_box()
        assert box is not None
        for share in (0.2, 0.5, 0.8):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    set_cursor(page, "slots", 0.5)
    unharmed(page)
    assert "onerror" in page.locator("#board-now").inner_text()
    run = page.url.partition("run=")[2].partition("&")[0]
    page.goto(f"{hostile_url}/inspect?run={run}&step=1")
    settled(page)
    unharmed(page)


KEYS = ("../../etc/passwd", "/etc/passwd", "given-..", "r-../../x", SCRIPT, "%00")


def test_keys_that_are_none_get_one_sentence(open_page: OpenPage, hostile_url: str) -> None:
    page = open_page("about:blank")
    for key in KEYS:
        page.goto(f"{hostile_url}/replay?run={key}")
        problem = page.locator("#board-problem")
        problem.wait_for()
        said = problem.inner_text()
        assert "there is no run" in said
        assert "\n" not in said
        assert "root:x:" not in page.content()
        unharmed(page)


@pytest.mark.parametrize("path", [page.PATH for page in PAGES])
def test_an_address_full_of_nonsense_still_shows_the_page(open_page: OpenPage, hostile_url: str, path: str) -> None:
    nonsense = "run=,,,&from=NaN&to=1e999&step=-5&x=<b>&by=..&stop=99&mode=run&A.policy=none&workload=[]&block_size=1e9"
    page = open_page(f"{hostile_url}{path}?{nonsense}")
    page.locator("main h1").wait_for()
    settled(page)
    unharmed(page)


def test_uploads_that_are_no_traces_get_a_sentence(open_page: OpenPage, hostile_url: str, tmp_path: Path) -> None:
    page = open_page(hostile_url + "/replay")
    settled(page)
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04 not really")
    page.locator("#replay-upload input").set_input_files(tmp_path / "x.zip")
    said = page.locator("#replay-said")
    said.wait_for()
    assert said.inner_text()
    unharmed(page)
