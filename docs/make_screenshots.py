"""Makes a picture of each page of the dashboard, light and dark: `python docs/make_screenshots.py` (or names of some).

It starts what it shows: a dashboard over two simulated runs and, for Live, `batchscope live`. It needs Debian's
chromium (or `$BATCHSCOPE_CHROMIUM`) and the project's test dependencies. The pictures go to docs/images/dashboard/.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dashboard.scenario import scenario_named
from simulator import simulate

OUT = ROOT / "docs" / "images" / "dashboard"
CHROMIUM = os.environ.get("BATCHSCOPE_CHROMIUM", "/usr/bin/chromium")
WIDE, NARROW, HEIGHT = 1280, 400, 900
NARROW_TOO = ("replay", "tour")
"""Pages that are also shown as on a telephone."""
SCENARIO = "ten-at-once"
LIVE_S = 12.0
"""Live is shown after so long."""
QUIET = """() => {
  const plots = Array.from(document.querySelectorAll('.js-plotly-plot')).filter((plot) => {
    const box = plot.getBoundingClientRect();
    return box.width && box.top < window.innerHeight && box.bottom > 0;
  });
  return document.querySelector('main h1') && plots.every((plot) => plot._fullLayout && (plot.data || []).length);
}"""


@contextmanager
def served(*command: str) -> Iterator[str]:
    """A `batchscope` command that says where it answers; ended at the end."""
    words = [sys.executable, "-m", "batchscope", *command, "--port", "0", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"]).removesuffix("/live").rstrip("/")
    finally:
        process.terminate()
        process.wait()


def quiet(page: Page) -> None:
    """Wait until all that is on the screen is drawn."""
    page.wait_for_load_state("networkidle")
    page.wait_for_function(QUIET)
    page.wait_for_timeout(300)  # what slides in has arrived


def scroll_to(page: Page, selector: str) -> None:
    """Bring the part that matters below the header."""
    page.evaluate(
        "(what) => window.scrollTo(0, document.querySelector(what).getBoundingClientRect().top + window.scrollY - 110)",
        selector,
    )


def home(page: Page, url: str) -> None:
    """The first page."""
    page.goto(url)
    quiet(page)


def what_if(page: Page, url: str) -> None:
    """A scenario's form."""
    page.goto(f"{url}/what-if?scenario={scenario_named(SCENARIO).key}")
    quiet(page)


def what_if_results(page: Page, url: str) -> None:
    """The same, run: the figures side by side."""
    what_if(page, url)
    page.locator("#what-if-run").click()
    page.locator("#what-if-results h2").wait_for(timeout=120_000)
    scroll_to(page, "#what-if-results")
    quiet(page)


def replay(page: Page, url: str) -> None:
    """A part of two runs, with the cursor in it."""
    page.goto(f"{url}/replay?run=given-continuous,given-naive&from=2&to=9&step=300")
    page.locator("#board-now > div").nth(1).wait_for()
    quiet(page)


def replay_playing(page: Page, url: str) -> None:
    """The board further down."""
    replay(page, url)
    scroll_to(page, ".bar")
    quiet(page)


def inspect(page: Page, url: str) -> None:
    """Three requests of one step, laid open."""
    page.goto(f"{url}/inspect?mode=hand")
    page.locator("#inspect-shown h2").wait_for()
    quiet(page)


def sweep(page: Page, url: str) -> None:
    """A sweep's example, run."""
    page.goto(f"{url}/sweep")
    page.get_by_text("Try an example").click()
    page.wait_for_url("**/sweep?**")
    quiet(page)
    page.locator("#sweep-run").click()
    page.locator("#sweep-results .js-plotly-plot .points path").first.wait_for(timeout=120_000)
    scroll_to(page, "#sweep-results")
    quiet(page)


def tour(page: Page, url: str) -> None:
    """The third stop, at its end."""
    page.goto(f"{url}/tour?stop=3")
    quiet(page)
    while page.locator("#tour-on").is_enabled():
        page.locator("#tour-on").click()
        quiet(page)


def live(page: Page, url: str) -> None:
    """The embedded model at work, paused so that the picture is whole."""
    page.goto(f"{url}/live")
    page.locator(".state-live").wait_for()
    page.wait_for_timeout(LIVE_S * 1000)
    page.get_by_role("button", name="Pause").click()
    page.wait_for_timeout(1500)  # the last answers under way; a live page never stops asking
    page.wait_for_function(QUIET)


STATES: dict[str, Callable[[Page, str], None]] = {
    "home": home,
    "what-if": what_if,
    "what-if-results": what_if_results,
    "replay": replay,
    "replay-board": replay_playing,
    "inspect": inspect,
    "sweep": sweep,
    "tour": tour,
}


def shoot(browser: Browser, url: str, states: dict[str, Callable[[Page, str], None]]) -> None:
    """A picture of each state in each theme."""
    for theme in ("light", "dark"):
        for name, reach in states.items():
            for width in (WIDE, NARROW) if name in NARROW_TOO else (WIDE,):
                _shoot(browser, url, name, reach, theme, width)


def _shoot(browser: Browser, url: str, name: str, reach: Callable[[Page, str], None], theme: str, width: int) -> None:
    shown: Any = {"viewport": {"width": width, "height": HEIGHT}, "color_scheme": theme, "reduced_motion": "reduce"}
    context = browser.new_context(**shown)
    page = context.new_page()
    reach(page, url)
    narrow = "-narrow" if width == NARROW else ""
    page.screenshot(path=OUT / f"{name}{narrow}-{theme}.png", animations="disabled")
    context.close()


def traces(folder: Path) -> list[Path]:
    """The same requests, naive and continuous."""
    shared: dict[str, Any] = {"requests": 80, "seed": 7, "max_num_seqs": 8, "num_blocks": 2000, "plans": True}
    for name, policy in (("naive", "static"), ("continuous", "chunked")):
        simulate(out=folder / f"{name}.trace", policy=policy, **shared)
    return [folder / "continuous.trace", folder / "naive.trace"]


def main(names: list[str]) -> None:
    """All pictures, or those that are named."""
    OUT.mkdir(parents=True, exist_ok=True)
    states = {name: reach for name, reach in STATES.items() if not names or name in names}
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        if states:
            with served("dashboard", *map(str, traces(folder)), "--runs-dir", str(folder / "runs")) as url:
                shoot(browser, url, states)
        if not names or "live" in names:
            with served("live", "--runs-dir", str(folder / "live-runs")) as url:
                shoot(browser, url, {"live": live})
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
