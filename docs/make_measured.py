"""Draws the picture of naive against continuous batching from a measurement: `python docs/make_measured.py`.

The figures are in `docs/measured/naive-and-continuous.json`, as `benchmarks/naive_and_continuous.py` printed them.
Prints the table of `docs/validation.md`. Needs a Chromium (see `docs/make_screenshots.py`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

HERE = Path(__file__).resolve().parent
MEASURED = HERE / "measured" / "naive-and-continuous.json"
PICTURE = HERE / "images" / "naive-and-continuous.svg"
COLOURS = {"naive": "#d55e00", "continuous": "#0072b2"}
"""Okabe and Ito's palette, safe for the colour-blind."""
WIDTH, HEIGHT = 900, 380


def main() -> None:
    """Write the picture and print the table."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    PICTURE.write_text(svg(figure(found)), encoding="utf-8")
    print("\n".join(table(found)))


def figure(found: dict[str, Any]) -> go.Figure:
    """Measured points with the least and the most of their runs, predicted lines."""
    titles = ("8 slots, by how much outputs vary", "outputs vary by about 1, by slots")
    drawn = make_subplots(1, 2, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.04)
    for column, (rows, x) in enumerate((("by_variation", "variation"), ("by_slots", "slots")), 1):
        for way, colour in COLOURS.items():
            for trace in lines(found[rows], x, way, colour, legend=column == 1):
                drawn.add_trace(trace, row=1, col=column)
    drawn.update_xaxes(title_text="standard deviation ÷ mean of output lengths", row=1, col=1)
    drawn.update_xaxes(title_text="slots", type="log", tickvals=[p["slots"] for p in found["by_slots"]], row=1, col=2)
    drawn.update_yaxes(title_text="output tokens/s", rangemode="tozero", row=1, col=1)
    drawn.update_layout(
        template="plotly_white", width=WIDTH, height=HEIGHT, margin={"l": 60, "r": 20, "t": 40, "b": 90},
        legend={"orientation": "h", "y": -0.22, "x": 0.5, "xanchor": "center"},
        paper_bgcolor="white",
    )  # fmt: skip
    return drawn


def lines(points: list[dict[str, Any]], x: str, way: str, colour: str, *, legend: bool) -> list[go.Scatter]:
    """A way's measured points and its predicted line."""
    at = [point[x] for point in points]
    real = [point[way]["measured_tokens_per_s"] for point in points]
    more = [point[way]["measured_most"] - value for point, value in zip(points, real, strict=True)]
    less = [value - point[way]["measured_least"] for point, value in zip(points, real, strict=True)]
    said = [point[way]["predicted_tokens_per_s"] for point in points]
    bars = {"type": "data", "symmetric": False, "array": more, "arrayminus": less}
    common = {"x": at, "legendgroup": way, "showlegend": legend}
    return [
        go.Scatter(y=said, mode="lines", name=f"{way}, predicted", line={"color": colour, "dash": "dash"}, **common),
        go.Scatter(y=real, mode="markers", name=f"{way}, measured", error_y=bars, **common,
                   marker={"color": colour, "size": 9, "symbol": "circle" if way == "continuous" else "square"}),
    ]  # fmt: skip


def table(found: dict[str, Any]) -> list[str]:
    """Markdown: a row a point."""
    names = ("slots", "outputs vary by", "naive, measured", "predicted", "padding", "continuous, measured", "predicted",
             "gain, measured", "predicted")  # fmt: skip
    return [
        "| " + " | ".join(names) + " |",
        "|" + "---|" * len(names),
        *(row(point) for point in (*found["by_variation"], *found["by_slots"])),
    ]


def row(point: dict[str, Any]) -> str:
    """A point of the table; `gain` is continuous over naive."""
    naive, continuous = point["naive"], point["continuous"]
    gains = [continuous[f"{side}_tokens_per_s"] / naive[f"{side}_tokens_per_s"] for side in ("measured", "predicted")]
    cells = [
        point["slots"], f"{point['variation']:.2f}",
        *(f"{naive[f'{side}_tokens_per_s']:.0f}" for side in ("measured", "predicted")),
        f"{naive['measured_padding']:.0%}",
        *(f"{continuous[f'{side}_tokens_per_s']:.0f}" for side in ("measured", "predicted")),
        *(f"{gain:.2f}" for gain in gains),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def svg(drawn: go.Figure) -> str:
    """The figure as a browser draws it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("BATCHSCOPE_CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_content("<div id='here'></div>")
        page.add_script_tag(content=get_plotlyjs())
        found = page.evaluate(
            "spec => Plotly.newPlot('here', spec.data, spec.layout).then(drawn => Plotly.toImage(drawn, {format: 'svg',"
            " width: spec.layout.width, height: spec.layout.height}))",
            json.loads(drawn.to_json()),
        )
        browser.close()
    return unquote(str(found).removeprefix("data:image/svg+xml,"))


if __name__ == "__main__":
    main()
