"""The report opens from disk, with the network off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser

from tests.conftest import ROOT

from .conftest import new_context
from .driving import becomes
from .watch import Watch


def test_the_report_opens_from_disk_with_the_network_off_and_shows_its_figures(
    browser: Browser, watch: Watch, traces: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    command = [sys.executable, "-m", "batchscope", "report", *map(str, traces), "-o", str(out)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=120)
    context = new_context(browser, watch, offline=True)
    page = context.new_page()
    page.goto(out.as_uri())
    drawn = "() => document.querySelectorAll('.js-plotly-plot .main-svg').length"
    becomes(page, lambda: page.evaluate(drawn), lambda count: count >= 2 * 10)
    text = page.locator("body").inner_text()
    assert "simulated" in text
    assert "chunked" in text
    assert "static" in text
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert set(watch.hosts) <= {""}
    context.close()
