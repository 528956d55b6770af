"""The map of the KV pool at one step: a cell a block, coloured by who holds it."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dashboard.data.run import Run
from dashboard.data.window import Window
from dashboard.look import Figure, Look
from dashboard.scene import Scene

from .base import Panel
from .frame import Frame, plain, typed
from .kv import block_size

HUES = 24
"""Colours of holders; with more of them a colour comes again, and the hover tells them apart."""
HUE_STEP = 7
"""No divisor of `HUES` but 1, so requests one after another get hues that are far apart."""
SHADES = 4
"""Steps from an almost empty block to a full one."""
MOST_CELLS = 12288
"""Blocks drawn over all runs: with what the hover says they stay under 500 KB."""
MOST_TEXTS = 4096
"""Blocks over all runs up to which hovers name the requests; beyond, they number them."""
WIDTHS = (16, 32, 64, 128, 256)
ROW_PX = 150
NO_PLANS = "This run keeps no plans: record it with --plans"
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """The blocks of a run during a step; arrays are of ``(blocks,)``, block ids from 1 on.

    Attributes:
        step: which step.
        holder: request; -1: nobody (free, or kept cached: a plan does not tell).
        sharers: how many requests hold it.
        logical: its place in the holder's block table.
        written: KV positions written in it after the step; -1: its holder has no rows in the step.
        size: KV positions of a block.
        cached: blocks kept for the prefix cache, by the step's account.
    """

    step: int
    holder: Ints
    sharers: Ints
    logical: Ints
    written: Ints
    size: int
    cached: int

    @classmethod
    def of(cls, run: Run, row: int) -> Pool:
        """The pool in the step at a row of `steps`; the run must have plans."""
        trace = run.trace
        assert trace is not None
        names = ("step", "blocks_total", "blocks_cached")
        step, total, cached = (int(run.column("steps", name)[row]) for name in names)
        size = block_size(run) or 1
        tokens = {request: computed + new for request, _, computed, new, _ in trace.plan_at(step)}
        holder, logical, written = (np.full(total, -1, dtype=np.int64) for _ in range(3))
        sharers = np.zeros(total, dtype=np.int64)
        for request, blocks in trace.block_table_at(step).items():
            places = np.asarray(blocks, dtype=np.int64) - 1
            order = np.arange(len(places))
            inside = (places >= 0) & (places < total)
            places, order = places[inside], order[inside]
            holder[places], logical[places] = request, order
            sharers[places] += 1
            if request in tokens:
                written[places] = np.maximum(written[places], np.clip(tokens[request] - order * size, 0, size))
        return cls(step, holder, sharers, logical, written, size, cached)

    def part(self, chosen: slice) -> Pool:
        """Some of its blocks."""
        arrays = {name: getattr(self, name)[chosen] for name in ("holder", "sharers", "logical", "written")}
        return replace(self, **arrays)

    @property
    def held(self) -> int:
        """Blocks that somebody holds."""
        return int((self.holder >= 0).sum())

    @property
    def tail(self) -> int:
        """KV positions of held blocks that are not written, where that is known."""
        return int((self.size - self.written[self.written >= 0]).sum())

    @property
    def free(self) -> int:
        """Blocks neither held nor cached."""
        return max(0, len(self.holder) - self.held - self.cached)

    def sentence(self) -> str:
        """What is in it, in words."""
        holders = len(np.unique(self.holder[self.holder >= 0]))
        return (
            f"step {self.step:,}: {self.held:,} blocks held by {holders:,} requests, {self.cached:,} cached, "
            f"{self.free:,} free; {self.tail:,} positions not written"
        )


def draw(scene: Scene) -> Figure:
    """The pools at the cursor; without one, at the step of each run in view that has most blocks in use."""
    frame = Frame(scene, row_height=ROW_PX, y="", shares_x=False, x="KV blocks in the order of their ids")
    found = [_pool(window, row) for window, row in zip(scene.windows, scene.cursor_rows, strict=True)]
    if all(isinstance(pool, str) for pool in found):
        return frame.empty(str(found[0]) if found else "No run is chosen")
    frame.layout["xaxis"].update(showticklabels=False, constrain="domain", fixedrange=True)
    for row, pool in enumerate(found):
        if isinstance(pool, str):
            frame.note(pool, row=row, right=True)
        else:
            _cells(frame, row, pool, scene.runs[row])
    frame.layout["showlegend"] = False
    return frame.figure()


def _pool(window: Window, row: int | None) -> Pool | str:
    """The pool to draw, or why there is none."""
    run = window.run
    if run.trace is None or not run.meta.get("plans"):
        return NO_PLANS
    if block_size(run) is None:
        return "This run does not tell its block size"
    if row is None:
        if not window.num_steps:
            return "No step is in view"
        row = window.low + int(window.values("blocks_used").argmax())
    return Pool.of(run, row)


def _cells(frame: Frame, row: int, pool: Pool, run: Run) -> None:
    most = MOST_CELLS // frame.rows
    shown, total = pool.part(slice(0, most)), len(pool.holder)
    width = next((width for width in WIDTHS if len(shown.holder) <= width * width / 8), WIDTHS[-1])
    lines = max(1, -(-len(shown.holder) // width))
    gap = 1 if width <= 128 else 0.5
    frame.add(
        row, type="heatmap", z=typed(_grid(_codes(shown), width, lines, np.nan).astype(np.float32)), x0=0, dx=1, y0=0,
        dy=1, zmin=0, zmax=HUES * SHADES, colorscale=_scale(frame.scene.look), showscale=False, xgap=gap, ygap=gap,
        hoverongaps=False, **_hover(shown, run, (lines, width), texts=len(shown.holder) * frame.rows <= MOST_TEXTS),
    )  # fmt: skip
    starts = np.arange(0, lines, max(1, lines // 6))
    frame.yaxis(row, range=[lines - 0.5, -0.5], rangemode="normal", showgrid=False, tickvals=starts.tolist(),
                ticktext=[f"{1 + start * width:,}" for start in starts.tolist()])  # fmt: skip
    cut = f"; blocks 1 to {most:,} of {total:,} drawn" if total > most else ""
    note = f"step {pool.step:,}: {pool.held:,} held, {pool.cached:,} cached, {pool.free:,} free"
    frame.note(note + cut, row=row, right=True)


def _codes(pool: Pool) -> npt.NDArray[np.float64]:
    """Which colour each block has: 0 for nobody's, else one for a hue and a shade."""
    hue = pool.holder * HUE_STEP % HUES
    filled = np.where(pool.written < 0, pool.size, pool.written) / max(1, pool.size)
    shade = np.clip(np.ceil(filled * SHADES), 1, SHADES)
    return np.where(pool.holder < 0, 0, hue * SHADES + shade).astype(np.float64)


def _grid(values: npt.NDArray[Any], width: int, lines: int, missing: float) -> npt.NDArray[Any]:
    grid = np.full((width * lines, *values.shape[1:]), missing, dtype=values.dtype)
    grid[: len(values)] = values
    return grid.reshape(lines, width, *values.shape[1:])


def _hover(pool: Pool, run: Run, shape: tuple[int, int], *, texts: bool) -> dict[str, Any]:
    lines, width = shape
    if texts:
        said = np.asarray([*_texts(pool, run), *[""] * (width * lines - len(pool.holder))], dtype=object)
        return {"text": said.reshape(lines, width).tolist(), "hovertemplate": "%{text}<extra></extra>"}
    ids = np.arange(1, len(pool.holder) + 1)
    facts = np.stack([ids, pool.holder, pool.logical, pool.written], axis=1).astype(np.int32)
    words = "block %{customdata[0]}<br>request number %{customdata[1]} (-1: free or cached)<br>"
    words += f"its block %{{customdata[2]}}, %{{customdata[3]}} of {pool.size} tokens written"
    return {"customdata": typed(_grid(facts, width, lines, 0)), "hovertemplate": words + "<extra></extra>"}


def _texts(pool: Pool, run: Run) -> list[str]:
    names = run.names()
    columns: Sequence[Ints] = (pool.holder, pool.sharers, pool.logical, pool.written)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [f"block {at:,}<br>{_said(names, pool.size, *row)}" for at, row in enumerate(rows, start=1)]


def _said(names: Any, size: int, holder: int, sharers: int, logical: int, written: int) -> str:
    if holder < 0:
        return "free or cached"
    shared = f" and {sharers - 1} more" if sharers > 1 else ""
    filled = "no rows in this step" if written < 0 else f"{written} of {size} tokens written"
    return f"request {plain(str(names.get(holder, holder))[:60])}{shared}<br>its block {logical}, {filled}"


def _scale(look: Look) -> list[tuple[float, str]]:
    """A colour scale of plain steps, one for each code of `_codes`."""
    colors = [look.kinds["free"], *(_shade(look, hue, shade) for hue in range(HUES) for shade in range(1, SHADES + 1))]
    edges = [min(1.0, max(0.0, (code - 0.5) / (HUES * SHADES))) for code in range(len(colors) + 1)]
    return [stop for code, color in enumerate(colors) for stop in ((edges[code], color), (edges[code + 1], color))]


def _shade(look: Look, hue: int, shade: int) -> str:
    full = colorsys.hls_to_rgb(hue / HUES, 0.48 if look.name == "light" else 0.58, 0.42)
    paper = [int(look.card[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    weight = 0.25 + 0.75 * shade / SHADES
    mixed = (round(255 * (weight * a + (1 - weight) * b)) for a, b in zip(full, paper, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def words(scene: Scene) -> str:
    """What each pool holds."""
    parts = []
    for index, (window, row) in enumerate(zip(scene.windows, scene.cursor_rows, strict=True)):
        pool = _pool(window, row)
        parts.append(f"{scene.label(index)}: {pool if isinstance(pool, str) else pool.sentence()}.")
    return " ".join(parts)


def table(scene: Scene) -> pd.DataFrame:
    """One row a block; ``request`` is -1 where nobody holds it, ``written`` where that is not known."""
    frames = [pd.DataFrame(columns=["run", "step", "block", "request", "sharers", "logical", "written"])]
    for index, (window, row) in enumerate(zip(scene.windows, scene.cursor_rows, strict=True)):
        pool = _pool(window, row)
        if not isinstance(pool, str):
            frames.append(pd.DataFrame({
                "run": scene.runs[index].name, "step": pool.step, "block": np.arange(1, len(pool.holder) + 1),
                "request": pool.holder, "sharers": pool.sharers, "logical": pool.logical, "written": pool.written,
            }))  # fmt: skip
    return pd.concat(frames[1:] or frames, ignore_index=True)


PANEL = Panel(
    key="block-map",
    title="Block map",
    question="Who holds which KV block at the step under the cursor, and how much of it is written.",
    draw=draw,
    words=words,
    table=table,
    shares_x=False,
    follows_cursor=True,
)
