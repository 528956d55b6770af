"""A real browser, a real dashboard, and pages that fail a test when the console complains or a stranger is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from simulator import simulate
from traces.trace import Trace

from . import machines
from .driving import COUNTING
from .watch import Watch

CHROMIUM = Path(os.environ.get("BATCHSCOPE_CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
TIMEOUT_MS = 30_000
WIDE, NARROW = 1280, 400
PAGE_HEIGHT = 900

OpenPage = Callable[..., Page]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. Of the package, not of the session: Playwright keeps an event loop in this thread while it runs."""
    if not CHROMIUM.exists():
        missing = f"there is no browser at {CHROMIUM}; install Debian's chromium, or set BATCHSCOPE_CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same 60 requests, naive and continuous: folders of two simulated traces."""
    folder = tmp_path_factory.mktemp("traces")
    shared: dict[str, Any] = {"requests": 60, "seed": 7, "max_num_seqs": 8, "num_blocks": 400, "plans": True}
    for policy in ("static", "chunked"):
        simulate(out=folder / f"{policy}.trace", policy=policy, **shared)
    return [folder / "chunked.trace", folder / "static.trace"]


@pytest.fixture(scope="package")
def chunked(traces: list[Path]) -> Trace:
    """The first of them, opened."""
    return Trace.open(traces[0])


@pytest.fixture(scope="package")
def dashboard_url(browser: Browser, traces: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard over the two traces, as `batchscope dashboard` starts it."""
    with machines.dashboard(tmp_path_factory.mktemp("runs"), *traces) as url:
        yield url


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Fails the test at its end when a page complained or asked another host."""
    watched = Watch()
    yield watched
    watched.assert_clean()


def new_context(
    browser: Browser, watch: Watch, *, width: int = WIDE, theme: str = "light", **more: Any
) -> BrowserContext:
    """A person's browser, listened to; `more` goes to Playwright."""
    shown: Any = {"viewport": {"width": width, "height": PAGE_HEIGHT}, "color_scheme": theme}
    context = browser.new_context(**shown, **more)
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(COUNTING)
    watch.over(context)
    return context


@pytest.fixture
def open_page(browser: Browser, watch: Watch) -> Iterator[OpenPage]:
    """Opens an address in a context of its own: another person's browser. Takes what `new_context` takes."""
    contexts = []

    def opened(url: str, **how: Any) -> Page:
        contexts.append(new_context(browser, watch, **how))
        page = contexts[-1].new_page()
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
