"""Memory of the live page and of its server while a recorded trace is played through them at speed; prints JSON.

    python benchmarks/dashboard_page.py RUN.trace [--speed 40] [--seconds 200] [--chromium /usr/bin/chromium]

Every twenty seconds, after a garbage collection: the page's heap and nodes, the server's memory, how far it is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVERY_MS = 20_000
MIB = 2**20
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main() -> None:
    """Play, watch, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--speed", default="40")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    play = ("dashboard.live.player", options.trace, "--speed", options.speed, "--linger", "600")
    with started(*play) as (_, player), tempfile.TemporaryDirectory() as runs:
        serve = ("batchscope", "dashboard", "--port", "0", "--json", "--runs-dir", runs, "--engine", player["url"])
        with started(*serve) as (server, ready):
            looks = watch(ready["url"], server.pid, options.seconds, options.chromium)
    print(json.dumps({"benchmark": "live page, memory", "speed": options.speed, "looks": looks}, indent=1))


@contextmanager
def started(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A module as a process of its own, and what it says when it is ready."""
    command = [sys.executable, "-m", module, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def watch(url: str, pid: int, seconds: float, chromium: str) -> list[dict[str, Any]]:
    """Looks at the page, oldest first."""
    import psutil
    from playwright.sync_api import sync_playwright

    looks = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < seconds:
            page.wait_for_timeout(EVERY_MS)
            devtools.send("HeapProfiler.collectGarbage")
            told = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
            looks.append(
                {
                    "after_s": round(time.monotonic() - begun_s),
                    "page_heap_mib": round(told["JSHeapUsedSize"] / MIB, 1),
                    "page_nodes": int(told["Nodes"]),
                    "server_mib": round(psutil.Process(pid).memory_info().rss / MIB),
                    "told": page.locator("#live-state").inner_text(),
                }
            )
        browser.close()
    return looks


if __name__ == "__main__":
    main()
