"""What a person does with a board, and what they read off it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

from playwright.sync_api import Locator, Page

COUNTING = """(() => {
  const fetched = window.fetch;
  window.asked = { now: 0, last: performance.now() };
  window.fetch = (...what) => {
    window.asked.now += 1;
    return fetched(...what).finally(() => { window.asked.now -= 1; window.asked.last = performance.now(); });
  };
})()"""
"""Runs before a page's own scripts: counts what is asked of the server at the moment."""
_QUIET = """() => {
  const seen = Array.from(document.querySelectorAll('.card[data-asked] .js-plotly-plot')).filter((plot) => {
    const box = plot.getBoundingClientRect();
    return box.top < window.innerHeight && box.bottom > 0;
  });
  const drawn = seen.every((plot) => plot._fullLayout && plot._fullLayout.xaxis && plot._fullLayout.xaxis.visible);
  const answered = window.asked.now === 0 && performance.now() - window.asked.last > 150;
  return answered && drawn && document.querySelector('main h1') !== null;
}"""
Value = TypeVar("Value")


def settled(page: Page) -> None:
    """Wait until all that was asked of the server is answered and the panels on the screen are drawn."""
    page.wait_for_function(_QUIET)


def becomes(page: Page, read: Callable[[], Value], right: Callable[[Value], object], timeout_s: float = 40.0) -> Value:
    """Read until it is right; fails with what was read last."""
    deadline = time.monotonic() + timeout_s
    while not right(value := read()):
        assert time.monotonic() < deadline, f"it stayed {value!r}"
        page.wait_for_timeout(40)
    return value


def plot(page: Page, key: str) -> Locator:
    """The plot of a panel, drawn, in the middle of the screen: the bar of controls would cover it at the top."""
    page.evaluate("(key) => document.getElementById('card-' + key).scrollIntoView({block: 'center'})", key)
    page.wait_for_function(
        """(key) => { const plot = document.querySelector(`#card-${key} .js-plotly-plot`);
                      const axis = plot && plot._fullLayout && plot._fullLayout.xaxis;
                      return axis && axis.visible && plot.data.length > 0; }""",
        arg=key,
    )
    return page.locator(f"#card-{key} .js-plotly-plot")


def x_range(page: Page, key: str) -> tuple[float, float]:
    """The part of x that a panel shows."""
    start, end = page.locator(f"#card-{key} .js-plotly-plot").evaluate("(p) => p._fullLayout.xaxis.range.map(Number)")
    return start, end


def place(page: Page, key: str, share: float) -> tuple[float, float]:
    """Where on the screen a panel has this share of its x, inside its first row."""
    at = page.locator(f"#card-{key} .js-plotly-plot").evaluate(
        """(plot, share) => { const box = plot.getBoundingClientRect(), full = plot._fullLayout;
            return [box.left + full.xaxis._offset + share * full.xaxis._length,
                    box.top + full.yaxis._offset + full.yaxis._length / 2]; }""",
        share,
    )
    return at[0], at[1]


def set_cursor(page: Page, key: str, share: float) -> int:
    """Click into a panel, elsewhere than last time; returns the step of the first run that the page then tells."""
    plot(page, key)
    before = sentences(page)
    page.mouse.click(*place(page, key, share))
    becomes(page, lambda: sentences(page), lambda told: told and told != before)
    step = step_under_cursor(page)
    assert step is not None
    return step


def drag(page: Page, key: str, start: float, end: float) -> None:
    """Zoom."""
    plot(page, key)
    page.mouse.move(*place(page, key, start))
    page.mouse.down()
    page.mouse.move(*place(page, key, end), steps=4)
    page.mouse.up()


def sentences(page: Page) -> list[str]:
    """The cursor's line of each run."""
    return page.locator("#board-now > div").all_inner_texts()


def step_under_cursor(page: Page) -> int | None:
    """Of the first run."""
    told = sentences(page)
    found = re.search(r"step ([\d,]+) at", told[0]) if told else None
    return int(found[1].replace(",", "")) if found else None


def choose(page: Page, select: str, option: str) -> None:
    """Pick an option of a select by its words, with or without a remark in brackets; the first that is called so."""
    page.locator(f"#{select}").click()
    page.get_by_role("option", name=re.compile(rf"^{re.escape(option)}( \(|$)")).first.click()


def segment(page: Page, control: str, label: str) -> None:
    """Pick one of a segmented control."""
    page.locator(f"#{control}").get_by_text(label, exact=True).click()


def text_of(page: Page, selector: str) -> str:
    """Text of the first that fits; empty where there is none at the moment."""
    return str(
        page.evaluate("(what) => { const e = document.querySelector(what); return e ? e.innerText : ''; }", selector)
    )
