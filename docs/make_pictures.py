"""Draws the pictures of README and docs from real runs: `python docs/make_pictures.py`.

The slot timeline shows the same requests under naive and continuous batching, eight slots each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from simulator import simulate
from traces import Trace
from traces.arrivals import Poisson
from traces.generate import Generator
from traces.lengths import LogNormal

SLOTS = 8
WIDTH, LEFT, ROW, GAP = 900, 96, 15, 58
COLOURS = {"prefill": "#0072b2", "decode": "#56b4e9", "padding": "url(#hatch)", "preempted": "#d55e00"}
"""Okabe and Ito's palette, safe for the colour-blind."""


def runs() -> list[tuple[str, Trace]]:
    """The same 32 requests, naive and continuous."""
    generator = Generator(
        Poisson(rate=6.0),
        LogNormal(mean=700, sigma=0.8, min=50, max=2000),
        LogNormal(mean=150, sigma=0.9, min=10, max=500),
    )
    workload = generator.workload(32, seed=3, name="picture")
    options = {"model": "llama-3.1-8b", "hardware": "a100-80gb", "max_num_seqs": SLOTS}
    naive = simulate(workload, policy="static", **options)
    continuous = simulate(workload, policy="chunked", **options)
    return [("naive: static batches, padded", naive), ("continuous: chunked prefill, ragged", continuous)]


def timeline(spans: pd.DataFrame, steps: pd.DataFrame, top: float, scale: float) -> list[str]:
    """Rectangles of all spans that sit in a slot."""
    drawn = [
        f'<rect x="{LEFT}" y="{top + slot * ROW}" width="{WIDTH - LEFT}" height="{ROW - 2}" fill="#8882"/>'
        for slot in range(SLOTS)
    ]
    start, end = steps["t_start_s"].to_numpy(), steps["t_end_s"].to_numpy()
    for span in spans[spans["slot"] >= 0].itertuples():
        x0, x1 = start[span.first_step] * scale, end[span.last_step] * scale
        label = f"request {span.request}: {span.kind}, {span.tokens} tokens"
        drawn.append(
            f'<rect x="{LEFT + x0:.1f}" y="{top + span.slot * ROW}" width="{max(x1 - x0 - 0.5, 0.5):.1f}" '
            f'height="{ROW - 2}" fill="{COLOURS[span.kind]}"><title>{escape(label)}</title></rect>'
        )
    return drawn


def picture() -> str:
    """The whole SVG."""
    shown = runs()
    longest_s = max(float(trace.steps["t_end_s"].iloc[-1]) for _, trace in shown)
    scale = (WIDTH - LEFT) / longest_s
    parts, top = [], 26.0
    for title, trace in shown:
        figures = trace.summary()
        text = (
            f"{title}: all served after {figures['makespan_s']:.1f} s, mean latency {figures['e2e_s']['mean']:.1f} s, "
            f"{figures['padding_fraction']:.0%} of computed rows are padding"
        )
        parts.append(f'<text x="0" y="{top - 8}" font-weight="bold">{escape(text)}</text>')
        parts += [f'<text x="0" y="{top + s * ROW + 10}">slot {s}</text>' for s in range(SLOTS)]
        parts += timeline(trace.spans, trace.steps, top, scale)
        top += SLOTS * ROW + GAP - 20
    parts += legend(top - 14)
    return "\n".join([head(top + 6), *parts, "</svg>\n"])


def legend(y: float) -> list[str]:
    """Colours and their meaning."""
    kinds = [("prefill", "prefill"), ("decode", "decode"), ("padding", "finished, still computed"), (None, "idle")]
    drawn, x = [], float(LEFT)
    for kind, label in kinds:
        fill = "#8882" if kind is None else COLOURS[kind]
        drawn.append(f'<rect x="{x}" y="{y - 10}" width="14" height="11" fill="{fill}"/>')
        drawn.append(f'<text x="{x + 19}" y="{y}">{label}</text>')
        x += 40 + 7 * len(label)
    return drawn


def head(height: float) -> str:
    """Opening tag, colours for light and dark pages, the hatch."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        'font-family="sans-serif" font-size="11">\n<title>Slots over time under naive and continuous batching</title>\n'
        "<style>text{fill:#24292f}@media(prefers-color-scheme:dark){text{fill:#d0d7de}}</style>\n"
        '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="5" height="5" fill="#e69f0044"/><rect width="2" height="5" fill="#e69f00"/></pattern></defs>'
    )


if __name__ == "__main__":
    target = ROOT / "docs" / "images" / "slot-timeline.svg"
    target.write_text(picture(), encoding="utf-8")
    print(f"wrote {target.relative_to(ROOT)}")
