"""How fast the dashboard answers over a trace of 1,000,000 steps, 100,000 requests and 256 slots. JSON.

    python benchmarks/dashboard.py                 all three parts, each in fresh processes
    python benchmarks/dashboard.py figures         each panel's figure by itself: time and bytes
    python benchmarks/dashboard.py requests        the app's own callbacks, asked side by side as a page asks
    python benchmarks/dashboard.py browser         Chromium over the real server: from a gesture to the last redraw

The trace is simulated once and kept (`--trace`, several minutes). Zooms are of ten sizes, each to another place.
Targets: it opens in under 3 s, zoom and cursor answer in under 150 ms, a figure takes under 2 MB. `browser` also needs
Playwright and Chromium (`--chromium`); without them it says so. `cpu` figures are this process's processor time: on a
machine that others use too they say more than the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np
from plotly.io.json import to_json_plotly

from dashboard.data.run import TraceRun
from dashboard.panels import PANELS
from dashboard.panels.base import Panel
from dashboard.scene import Scene
from dashboard.view import View
from traces.trace import Trace

REQUESTS, SLOTS = 100_000, 256
RATE_PER_S, MEAN_OUTPUT, NUM_BLOCKS = 2.1, 2720, 42_000
"""Near the limit of the simulated system, so that queue, preemptions and full slots are all in the picture."""
TRACE = Path(tempfile.gettempdir()) / "batchscope-benchmark" / "big.trace"
SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 2e-5, 5e-6)
"""Of the run's length that the zooms show; the last are a few steps."""
THREADS = 8
OPEN_S, ANSWER_S, MOST_BYTES = 3.0, 0.150, 2_000_000
SEEN = 2
"""Panels on a screen at once, about."""
PARTS = ("figures", "requests", "browser")


def main() -> None:
    """Run the parts that were asked for and print their JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument(
        "--trace", type=Path, default=Path(tempfile.gettempdir()) / "batchscope-benchmark" / "big.trace"
    )
    parser.add_argument("--chromium", type=Path, default=Path("/usr/bin/chromium"))
    options = parser.parse_args()
    make(options.trace)
    if options.part is None:
        command = [sys.executable, __file__, "--trace", str(options.trace), "--chromium", str(options.chromium)]
        found = [subprocess.run([*command, part], stdout=subprocess.PIPE, check=True).stdout for part in PARTS]
        machine = {"cpus": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)}
        result = {"benchmark": "dashboard", "machine": machine, **dict(zip(PARTS, map(json.loads, found), strict=True))}
    elif options.part == "browser":
        result = browser(options.trace, options.chromium)
    else:
        result = {"figures": figures, "requests": requests}[options.part](options.trace)
    print(json.dumps(result, indent=1))


def make(path: Path) -> None:
    """Simulate the trace unless it is there."""
    if (path / "meta.json").is_file() and Trace.open(path).status == "finished":
        return
    from simulator import simulate
    from traces.arrivals import Poisson
    from traces.generate import Generator
    from traces.lengths import LogNormal

    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = LogNormal(mean=600, sigma=1.0, min=16, max=8000), LogNormal(mean=MEAN_OUTPUT, sigma=0.8, min=16, max=7000)
    workload = Generator(Poisson(rate=RATE_PER_S), *lengths).workload(REQUESTS, seed=4, name="big")
    simulate(
        workload, out=path, policy="chunked", model="llama-3.1-8b", hardware="a100-80gb", tensor_parallel=2,
        max_num_seqs=SLOTS, max_model_len=16_384, max_num_batched_tokens=2048, num_blocks=NUM_BLOCKS, seed=4,
    )  # fmt: skip


def opened(path: Path) -> TraceRun:
    """The run, nothing of it read yet."""
    return TraceRun("big", path.name, Trace.open(path))


def views(run: TraceRun) -> list[View]:
    """Ten zooms."""
    end_s = float(run.column("steps", "t_end_s")[-1] - run.origin_s)
    places = np.random.default_rng(0).random(len(SHARES))
    starts = [place * end_s * (1 - share) for place, share in zip(places, SHARES, strict=True)]
    return [View(("big",), start=start, end=start + share * end_s) for start, share in zip(starts, SHARES, strict=True)]


# ---- each panel by itself --------------------------------------------------------------------------------------------


def figures(path: Path) -> dict[str, Any]:
    """Each panel's figure and words in one thread: the first of the whole run, again, ten zooms, ten cursors; `cpu`."""
    start = time.perf_counter()
    run = opened(path)
    first = {key: drawn(panel, run, View(("big",))) for key, panel in PANELS.items()}
    opened_s = time.perf_counter() - start
    zooms = {key: [drawn(panel, run, view) for view in views(run)] for key, panel in PANELS.items()}
    together = [sum(zooms[key][at][0] for key in PANELS) for at in range(len(SHARES))]
    sizes = {key: max(size for _, size in [first[key], *zooms[key]]) for key in PANELS}
    return {
        "steps": run.num_steps,
        "requests": len(run.column("requests", "request")),
        "slots": run.slots_total,
        "opened_s": round(opened_s, 2),
        "panels": {
            key: {
                "first_cpu_ms": ms(first[key][0]),
                "again_cpu_ms": ms(drawn(panel, run, View(("big",)))[0]),
                "zoom_cpu_ms": ms(np.median([seconds for seconds, _ in zooms[key]])),
                "worst_zoom_cpu_ms": ms(max(seconds for seconds, _ in zooms[key])),
                "cursor_cpu_ms": ms(max(cursor_moves(panel, run))) if panel.follows_cursor else None,
                "most_bytes": sizes[key],
            }
            for key, panel in PANELS.items()
        },
        "all_panels_zoom_cpu_ms": {"median": ms(np.median(together)), "worst": ms(max(together))},
        "bytes_under_limit": max(sizes.values()) < MOST_BYTES,
        "columns_bytes": run.held_bytes(),
        "resident_bytes": resident_bytes("self"),
    }


def drawn(panel: Panel, run: TraceRun, view: View) -> tuple[float, int]:
    """Processor seconds to a figure's JSON and its words, and the bytes of the JSON; with a scene of its own, as in a
    request.
    """
    start = time.thread_time()
    scene = Scene((run,), view)
    text = to_json_plotly(panel.draw(scene))
    panel.words(scene)
    return time.thread_time() - start, len(text.encode())


def cursor_moves(panel: Panel, run: TraceRun) -> list[float]:
    """Seconds for each of ten places of the cursor."""
    steps = np.linspace(0, run.num_steps - 1, 10).astype(int).tolist()
    return [drawn(panel, run, View(("big",), step=step))[0] for step in steps]


# ---- the app's callbacks ---------------------------------------------------------------------------------------------


def requests(path: Path) -> dict[str, Any]:
    """The app's answers to what a page asks, `THREADS` at a time: all panels at once, and those on a screen."""
    with app_over(path) as client:
        keys, whole = list(PANELS), {"run": client.key}
        start, cpu = time.perf_counter(), time.process_time()
        sizes = client.ask(keys, whole)
        opened_s, opened_cpu_s = time.perf_counter() - start, time.process_time() - cpu
        zooms = [{**view.fields(), "run": client.key} for view in views(opened(path))]
        steps = range(0, 900_000, 90_000)
        return {
            "opened_s": round(opened_s, 2),
            "opens_in_time": opened_s < OPEN_S,
            "opened_cpu_s": round(opened_cpu_s, 2),
            "most_answer_bytes": max(sizes),
            "zoom_all_panels_ms": spread_ms([timed(client.ask, keys, zoom) for zoom in zooms]),
            "zoom_panels_on_screen_ms": spread_ms([timed(client.ask, keys[:SEEN], zoom) for zoom in zooms]),
            "cursor_ms": spread_ms([timed(client.point, step) for step in steps]),
            "resident_bytes": resident_bytes("self"),
        }


class Client:
    """Asks an app what a browser asks it."""

    def __init__(self, app: Any, key: str) -> None:
        self.key = key
        self._app = app
        self._pool = ThreadPoolExecutor(THREADS)

    def ask(self, keys: Sequence[str], view: Mapping[str, Any], cursor: int | None = None) -> list[int]:
        """Bytes of the answers, all panels asked at once."""
        return list(self._pool.map(lambda key: self._panel(key, view, cursor), keys))

    def point(self, step: int) -> None:
        """Move the cursor: its line, and the panels that follow it."""
        values = {"board-view": {"run": self.key}, "board-cursor": {"step": step}, "board-tick": 0}
        line = self._pool.submit(self._post, "board-now", [(name, "data", value) for name, value in values.items()], [])
        self.ask([key for key, panel in PANELS.items() if panel.follows_cursor], {"run": self.key}, step)
        line.result()

    def _panel(self, key: str, view: Mapping[str, Any], cursor: int | None) -> int:
        ident = {"type": "panel-ask", "key": key}
        asked = {"view": view, "theme": "light", "tick": 0, "narrow": False, "cursor": {"step": cursor}}
        return self._post("panel-words", [(ident, "data", asked)], [(ident, "id", ident)], key)

    def _post(self, word: str, inputs: list[Any], state: list[Any], key: str = "") -> int:
        """Call the callback that has `word` among its outputs; returns the answer's bytes."""
        output = next(name for name in self._app.callback_map if word in name)
        parts = [part.rsplit(".", 1) for part in output.replace('["MATCH"]', json.dumps(key))[2:-2].split("...")]
        outputs = [(json.loads(ident) if ident[0] == "{" else ident, name) for ident, name in parts]
        body = {
            "output": output,
            "outputs": [{"id": ident, "property": name} for ident, name in outputs],
            "inputs": [{"id": ident, "property": name, "value": value} for ident, name, value in inputs],
            "changedPropIds": [f"{spelled(ident)}.{name}" for ident, name, _ in inputs],
            "state": [{"id": ident, "property": name, "value": value} for ident, name, value in state],
        }
        answer = self._app.server.test_client().post("/_dash-update-component", json=body)
        assert answer.status_code == 200, answer.text[:500]
        return len(answer.data)


def spelled(ident: str | dict[str, str]) -> str:
    """An id as Dash writes it."""
    return ident if isinstance(ident, str) else json.dumps(ident, sort_keys=True, separators=(",", ":"))


@contextmanager
def app_over(path: Path) -> Iterator[Client]:
    """The real app in this process."""
    from dashboard.app import create_app
    from dashboard.serve import Settings, services_of

    with tempfile.TemporaryDirectory() as folder, services_of(Settings((path,), Path(folder))) as services:
        yield Client(create_app(services), services.catalog.entries()[0].key)


# ---- as a person sees it ---------------------------------------------------------------------------------------------

WATCH = """
window.marks = { released: 0, last: 0, count: 0, origin: performance.timeOrigin };
const mark = () => { marks.last = performance.now(); marks.count += 1; };
window.onScreen = (plot) => {
  const box = plot.getBoundingClientRect();
  return box.bottom > 0 && box.top < innerHeight;
};
addEventListener("pointerup", () => { marks.released = performance.now(); }, true);
new MutationObserver((changes) => {
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    if (plot.on && !plot.dataset.watchedHere) {
      plot.dataset.watchedHere = "yes";
      plot.on("plotly_afterplot", () => { if (onScreen(plot)) mark(); });
    }
  }
  if (changes.some((change) => change.target.closest && change.target.closest("#board-now"))) mark();
}).observe(document, { childList: true, subtree: true, characterData: true });
"""
"""Notes when a gesture ended and when a panel on the screen was last drawn, or the cursor's line last written."""
PANELS_ON_SCREEN = """
Array.from(document.querySelectorAll(".js-plotly-plot")).filter(onScreen)
  .map((plot) => plot.closest(".card").dataset.key)
"""
QUIET_S = 1.0
DRAGS = ((0.2, 0.8), (0.4, 0.5), (0.6, 0.62), (0.1, 0.15), (0.3, 0.9))
CLICKS = (0.2, 0.5, 0.8, 0.35, 0.65)


def browser(path: Path, chromium: Path) -> dict[str, Any]:
    """Gestures in a page of the real server, 1280 x 900: from the release of the button to the last redraw in sight."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {"skipped": "Playwright is not installed"}
    if not chromium.exists():
        return {"skipped": f"there is no browser at {chromium}"}
    with ExitStack() as stack:
        server = stack.enter_context(served(path))
        playwright = stack.enter_context(sync_playwright())
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        page = playwright.chromium.launch(executable_path=chromium, args=arguments).new_page()
        page.set_viewport_size({"width": 1280, "height": 900})
        page.add_init_script(WATCH)
        page.goto(f"{server['url']}replay?run=given-{path.stem}")
        opened_s = settled(page)["last"] / 1e3
        return {
            "opened_s": round(opened_s, 2),
            "opens_in_time": opened_s < OPEN_S,
            "panels_on_screen": page.evaluate(PANELS_ON_SCREEN),
            "zoom_ms": spread_ms([drag(page, *part) for part in DRAGS]),
            "cursor_ms": spread_ms([click(page, part) for part in CLICKS]),
            "server_resident_bytes": resident_bytes(server["pid"]),
        }


@contextmanager
def served(path: Path) -> Iterator[dict[str, Any]]:
    """A dashboard over the trace in a process of its own: its address and process id."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "batchscope",
            "dashboard",
            str(path),
            "--port",
            "0",
            "--json",
            "--runs-dir",
            folder,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(20)


def settled(page: Any) -> dict[str, float]:
    """The page's marks once nothing in sight has been drawn for `QUIET_S`."""
    page.wait_for_function(
        f"marks.count > 0 && performance.now() - Math.max(marks.last, marks.released) > {QUIET_S * 1e3}", timeout=60_000
    )
    marks: dict[str, float] = page.evaluate("marks")
    return marks


def plot_box(page: Any) -> Any:
    """Where the first figure's data lie on the screen."""
    return page.evaluate("""() => {
      const plot = document.querySelector(".plot.shares-x .js-plotly-plot"), box = plot.getBoundingClientRect();
      const size = plot._fullLayout._size;
      return { x: box.left + size.l, y: box.top + size.t + size.h / 2, width: size.w };
    }""")


def drag(page: Any, start: float, end: float) -> float:
    """Seconds that a zoom takes; then the whole run is shown again."""
    box = plot_box(page)
    page.mouse.move(box["x"] + start * box["width"], box["y"])
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + 2, steps=4)
    page.mouse.up()
    marks = settled(page)
    page.click("#board-whole")
    settled(page)
    return (marks["last"] - marks["released"]) / 1e3


def click(page: Any, place: float) -> float:
    """Seconds that a move of the cursor takes."""
    box = plot_box(page)
    page.mouse.click(box["x"] + place * box["width"], box["y"])
    marks = settled(page)
    return (marks["last"] - marks["released"]) / 1e3


# ---- figures of figures ----------------------------------------------------------------------------------------------


def timed(function: Callable[..., Any], *values: Any) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function(*values)
    return time.perf_counter() - start


def spread_ms(seconds: Sequence[float]) -> dict[str, Any]:
    """Median and largest, and whether even that is in time."""
    return {"median": ms(np.median(seconds)), "worst": ms(max(seconds)), "in_time": bool(max(seconds) < ANSWER_S)}


def ms(seconds: float | np.floating[Any]) -> float:
    """Milliseconds, one decimal."""
    return round(float(seconds) * 1e3, 1)


def resident_bytes(process: int | str) -> int:
    """Memory that a process holds (Linux)."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
