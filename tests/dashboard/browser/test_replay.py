"""Replay, driven to its end by clicks and keys: two runs chosen, played, zoomed, read, exported, shared as a link."""

from __future__ import annotations

import io
import operator
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page

from dashboard.panels import PANELS
from traces.trace import Trace

from .conftest import OpenPage, new_context
from .driving import (
    becomes,
    choose,
    drag,
    plot,
    segment,
    sentences,
    set_cursor,
    settled,
    step_under_cursor,
    text_of,
    x_range,
)
from .watch import Watch

NEAR = 1e-6


@pytest.fixture(scope="module")
def shared(browser: Browser, dashboard_url: str) -> Iterator[tuple[Page, Watch]]:
    """Replay over the naive and the continuous run, opened once: it is a page with many figures."""
    watched = Watch()
    context = new_context(browser, watched)
    page = context.new_page()
    page.goto(dashboard_url + "/replay")
    settled(page)
    yield page, watched
    context.close()


@pytest.fixture
def replay(shared: tuple[Page, Watch]) -> Iterator[Page]:
    """The same page with both runs in view; fails the test at its end when the page complained."""
    page, watched = shared
    if "given-static" in page.url:
        page.locator("#board-whole").click()
        settled(page)
    yield page
    watched.assert_clean()


def playing(page: Page, yes: bool) -> None:
    becomes(page, lambda: text_of(page, "#board-play"), lambda text: text == ("Pause" if yes else "Play"))


def moved_to(page: Page, right: Callable[[int | None], object]) -> int:
    step = becomes(page, lambda: step_under_cursor(page), right)
    assert step is not None
    return step


def test_two_runs_chosen_by_hand_are_played_to_the_end(replay: Page, chunked: Trace) -> None:
    choose(replay, "replay-runs", "static")
    replay.keyboard.press("Escape")
    becomes(replay, lambda: replay.url, lambda url: "run=given-chunked,given-static" in url)
    choose(replay, "board-speed", "100×")
    replay.locator("#board-play").click()
    playing(replay, True)
    playing(replay, False)
    told = becomes(replay, lambda: sentences(replay), lambda lines: len(lines) == 2)
    assert told[0].startswith("A · chunked (simulated)")
    assert told[1].startswith("B · static (simulated)")
    # the naive run is the longer one: at its end the continuous one has long been at its last step
    moved_to(replay, lambda step: step == len(chunked.steps) - 1)
    choose(replay, "board-speed", "1×")


def test_play_pauses_and_stepping_goes_one_step_back_and_on(replay: Page) -> None:
    start = set_cursor(replay, "slots", 0.1)
    replay.locator("#board-play").click()
    moved_to(replay, lambda step: step not in (None, start))
    replay.locator("#board-play").click()
    playing(replay, False)
    settled(replay)
    here = moved_to(replay, lambda step: step is not None)
    replay.locator("#board-on").click()
    moved_to(replay, lambda step: step == here + 1)
    for _ in range(2):
        replay.locator("#board-back").click()
    moved_to(replay, lambda step: step == here - 1)


def test_a_drag_in_one_panel_moves_all_and_a_double_click_shows_the_whole_run(replay: Page) -> None:
    keys = ("slots", "tokens", "queue")
    for key in keys:
        plot(replay, key)
    whole = {key: x_range(replay, key) for key in keys}
    assert len(set(whole.values())) == 1
    drag(replay, "tokens", 0.25, 0.5)
    start, end = whole["tokens"]
    wanted = start + 0.25 * (end - start), start + 0.5 * (end - start)
    zoomed = becomes(replay, lambda: x_range(replay, "slots"), lambda shown: shown != whole["slots"])
    assert zoomed == pytest.approx(wanted, rel=0.02)
    shown = becomes(
        replay, lambda: {key: x_range(replay, key) for key in keys}, lambda now: len(set(now.values())) == 1
    )
    assert shown["queue"] == pytest.approx(zoomed, abs=NEAR)
    settled(replay)
    plot(replay, "queue").locator(".nsewdrag").first.dblclick()
    becomes(replay, lambda: x_range(replay, "queue"), lambda shown: shown == pytest.approx(whole["queue"], abs=NEAR))
    drag(replay, "queue", 0.1, 0.2)
    becomes(replay, lambda: x_range(replay, "queue"), lambda shown: shown != whole["queue"])
    replay.locator("#board-whole").click()
    becomes(replay, lambda: x_range(replay, "queue"), lambda shown: shown == pytest.approx(whole["queue"], abs=NEAR))


def test_a_click_sets_the_cursor_in_all_panels(replay: Page, chunked: Trace) -> None:
    step = set_cursor(replay, "tokens", 0.15)
    told = sentences(replay)
    assert len(told) == 2
    tokens = chunked.columns("steps")["decode_tokens"][step]
    assert f"{tokens:,} decode" in told[0]
    for key in ("slots", "tokens", "queue"):
        plot(replay, key)
        line = replay.locator(f"#card-{key} .cursor-line")
        assert line.is_visible()
    lefts = [
        replay.locator(f"#card-{key} .cursor-line").evaluate(
            """(line) => { const axis = line.closest('.plot').querySelector('.js-plotly-plot')._fullLayout.xaxis;
                           return axis.p2d(parseFloat(line.style.left) - axis._offset); }"""
        )
        for key in ("slots", "tokens", "queue")
    ]
    start = float(chunked.columns("steps")["t_start_s"][step] - chunked.columns("requests")["arrival_s"].min())
    assert lefts == pytest.approx([start] * 3, abs=0.01)


def test_the_csv_of_a_panel_has_the_rows_of_its_table(replay: Page, chunked: Trace, tmp_path: Path) -> None:
    plot(replay, "tokens")
    with replay.expect_download() as download:
        replay.get_by_role("button", name=f"{PANELS['tokens'].title} as CSV").click()
    assert download.value.suggested_filename == "batchscope-tokens.csv"
    saved = tmp_path / "tokens.csv"
    download.value.save_as(saved)
    rows = pd.read_csv(io.BytesIO(saved.read_bytes()))
    first = rows[rows.iloc[:, 0] == rows.iloc[0, 0]]
    assert len(first) == len(chunked.steps)
    assert first["decode_tokens"].tolist() == chunked.columns("steps")["decode_tokens"].tolist()


def test_the_theme_switches_in_page_and_figures(replay: Page) -> None:
    def ink() -> str:
        return str(plot(replay, "tokens").evaluate("(plot) => plot._fullLayout.font.color"))

    light = ink()
    for theme, right in (("dark", lambda colour: colour != light), ("light", lambda colour: colour == light)):
        replay.locator("#theme-switch").click()
        becomes(replay, ink, right)
        assert replay.evaluate("document.documentElement.dataset.theme") == theme
        assert replay.evaluate("localStorage.getItem('theme')") == f'"{theme}"'


def test_keys_play_step_change_speed_and_show_help(replay: Page) -> None:
    step = set_cursor(replay, "tokens", 0.2)
    for key, by in (("ArrowRight", 1), ("Shift+ArrowRight", 10), ("ArrowLeft", -1), ("Shift+ArrowLeft", -10)):
        step += by
        replay.keyboard.press(key)
        moved_to(replay, partial(operator.eq, step))
    speed = replay.locator("#board-speed")
    for key, shown in (("]", "2×"), ("[", "1×"), ("[", "0.5×"), ("]", "1×")):
        replay.keyboard.press(key)
        becomes(replay, speed.input_value, partial(operator.eq, shown))
        replay.wait_for_timeout(150)  # the select tells Dash of its new value a moment after it shows it
    replay.keyboard.press(" ")
    playing(replay, True)
    replay.keyboard.press(" ")
    playing(replay, False)
    replay.keyboard.press("?")
    replay.get_by_role("dialog", name="Keys").wait_for()
    replay.keyboard.press("Escape")
    replay.get_by_role("dialog", name="Keys").wait_for(state="hidden")


def test_a_link_restores_the_view(replay: Page, open_page: OpenPage) -> None:
    segment(replay, "board-axis", "steps")
    becomes(replay, lambda: replay.url, lambda url: "x=step" in url)
    settled(replay)
    drag(replay, "tokens", 0.2, 0.6)
    becomes(replay, lambda: replay.url, lambda url: "from=" in url)
    settled(replay)
    set_cursor(replay, "tokens", 0.5)
    becomes(replay, lambda: replay.url, lambda url: bool(re.search(r"step=\d", url)))
    settled(replay)
    shown, told = x_range(replay, "slots"), sentences(replay)
    other = open_page(replay.url)
    settled(other)
    assert becomes(other, lambda: sentences(other), bool) == told
    assert x_range(other, "slots") == pytest.approx(shown, abs=NEAR)
    chosen = other.locator(".run-choice .mantine-Pill-label")
    assert [text.split()[0] for text in chosen.all_inner_texts()] == ["chunked", "static"]
    assert other.url == replay.url
