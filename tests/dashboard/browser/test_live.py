"""Live, driven to its end: attach, pause, scrub back, follow on; an engine that goes and comes back; metrics only."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from dashboard.live.player import Player
from simulator import simulate
from tests.dashboard.live_servers import serving
from tests.dashboard.test_live_prometheus import VLLM_TEXT

from .conftest import OpenPage
from .driving import becomes, choose, drag, plot, settled, text_of, x_range
from .machines import started

UPDATES, WITHIN_S = 6, 3.0
"""So many updates of a figure in so long are two a second."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 256 slots that takes longer than the tests watch it."""
    folder = tmp_path_factory.mktemp("live") / "run.trace"
    simulate(out=folder, requests=1500, seed=3, max_num_seqs=256, rate=20)
    return folder


@pytest.fixture
def player(recorded: Path) -> Iterator[Player]:
    with Player(recorded) as one:
        yield one


@pytest.fixture
def playing(player: Player) -> Iterator[Player]:
    """The recording, at the speed at which it was made."""
    thread = threading.Thread(target=player.play, args=(1.0,), daemon=True)
    thread.start()
    yield player
    player.recording.advance(len(player))  # the thread ends when all is written
    thread.join()


def state(page: Page) -> str:
    return text_of(page, "#live-state .badge")


def newest(page: Page) -> int:
    found = re.search(r"· step ([\d,]+)", text_of(page, "#live-state"))
    return int(found[1].replace(",", "")) if found else -1


def attach(page: Page, url: str) -> None:
    page.locator("#live-url").fill(url)
    page.get_by_role("button", name="Watch").click()


def test_an_engine_is_watched_paused_scrubbed_back_and_followed_again(
    open_page: OpenPage, dashboard_url: str, playing: Player
) -> None:
    page = open_page(dashboard_url + "/live")
    page.get_by_text("Nothing is watched yet").wait_for()
    attach(page, playing.url)
    becomes(page, lambda: state(page), lambda word: word == "live")
    plot(page, "slots")
    assert "256" in page.locator("#card-slots .words").inner_text()
    page.evaluate(
        """() => { window.updates = [];
            document.querySelector('#card-slots .js-plotly-plot').on('plotly_afterplot', () => {
              window.updates.push(performance.now() / 1000); }); }"""
    )
    becomes(page, lambda: page.evaluate("window.updates"), lambda times: _quick(times))

    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Follow").wait_for()
    settled(page)
    still, step = x_range(page, "slots"), newest(page)
    becomes(page, lambda: newest(page), lambda now: now > step)
    assert x_range(page, "slots") == still

    drag(page, "slots", 0.2, 0.4)
    back = becomes(page, lambda: x_range(page, "slots"), lambda shown: shown != still)
    assert still[0] < back[0] < back[1] < still[1]
    settled(page)
    assert x_range(page, "slots") == pytest.approx(back)

    choose(page, "live-span", "last 5 s")
    ahead = becomes(page, lambda: x_range(page, "slots"), lambda shown: shown[0] > still[0] and shown != back)
    becomes(page, lambda: x_range(page, "slots"), lambda shown: shown[1] > max(ahead[1], still[1]))
    page.get_by_role("button", name="Pause").wait_for()


def _quick(times: list[float]) -> bool:
    return any(last - first <= WITHIN_S for first, last in zip(times, times[UPDATES:], strict=False))


def test_an_engine_that_goes_is_called_gone_and_no_step_is_lost_or_doubled_when_it_comes_back(
    open_page: OpenPage, dashboard_url: str, player: Player
) -> None:
    page = open_page(dashboard_url + "/live?url=" + player.url)
    total = len(player)
    player.recording.advance(total // 3)
    becomes(page, lambda: newest(page), lambda step: step == total // 3 - 1)
    player.hang_up()
    becomes(page, lambda: state(page), lambda word: word == "gone")
    assert "trying again, since" in text_of(page, "#live-state")
    player.recording.advance(total // 3)
    player.serve()
    becomes(page, lambda: state(page), lambda word: word == "live")
    player.recording.advance(total)
    becomes(page, lambda: newest(page), lambda step: step == total - 1)
    told = text_of(page, "#live-state")
    assert f"{total:,} steps held" in told
    assert "missing" not in told
    player.recording.close()
    becomes(page, lambda: state(page), lambda word: word == "the recording has ended")


def test_of_a_server_with_metrics_only_the_page_shows_figures_and_says_what_they_cannot_tell(
    open_page: OpenPage, dashboard_url: str
) -> None:
    with serving(VLLM_TEXT) as server:
        page = open_page(dashboard_url + "/live")
        attach(page, server.url)
        page.get_by_text("metrics only").wait_for()
        becomes(page, lambda: state(page), lambda word: word == "live")
        page.locator(".js-plotly-plot").first.wait_for()
        titles = page.locator("#live-metrics .card h3").all_inner_texts()
        assert "Running and waiting" in titles
        assert "KV cache in use" in titles
        unsaid = page.locator(".card", has_text="What this source cannot tell").locator("li")
        assert unsaid.count() > 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [("http://127.0.0.1:9", "nobody answers at 127.0.0.1:9"), ("ftp://x", "http"), ("what is this", "http")],
)
def test_an_address_where_nobody_is_gets_one_sentence(
    open_page: OpenPage, dashboard_url: str, typed: str, said: str
) -> None:
    page = open_page(dashboard_url + "/live")
    page.get_by_text("Nothing is watched yet").wait_for()
    attach(page, typed)
    assert said in page.locator("#live-refused").inner_text()


def test_batchscope_live_shows_the_embedded_model_at_work(open_page: OpenPage, tmp_path: Path) -> None:
    with started("batchscope", "live", "--port", "0", "--json", "--runs-dir", str(tmp_path)) as url:
        page = open_page(url)
        becomes(page, lambda: state(page), lambda word: word == "live")
        assert "measured, policy chunked" in becomes(page, lambda: text_of(page, "#live-state"), lambda t: "step" in t)
        step = newest(page)
        becomes(page, lambda: newest(page), lambda now: now > step + 10)
        plot(page, "tokens")
        page.close()  # before the server that it asks
