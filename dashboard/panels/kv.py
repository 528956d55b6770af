"""KV blocks over x: in use, kept for the prefix cache, free; and the part in use that holds nothing yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dashboard.data.run import Run
from dashboard.data.window import Window
from dashboard.look import Figure
from dashboard.scene import Scene
from traces.metrics import step_weights

from .base import Panel
from .frame import Frame, hover_head, piece_texts, stack, typed
from .rows import step_rows

Floats = npt.NDArray[np.float64]
_COLUMNS = ["step", "t_start_s", "t_end_s", "blocks_used", "blocks_cached", "blocks_total", "context_tokens"]


@dataclass(frozen=True)
class Tail:
    """Allocated less written KV positions of each step in view.

    Attributes:
        tokens: ``(steps,)`` float64; nan where it cannot be known.
        why: why it is known nowhere in the view; empty where it is known.
    """

    tokens: Floats
    why: str

    @classmethod
    def of(cls, window: Window) -> Tail:
        """What a window's steps tell of it.

        A step says how many blocks are in use and how many KV positions its scheduled requests hold. Their difference
        is the tail where each of those who hold blocks is scheduled and no block is shared: a run without hits in the
        prefix cache.
        """
        why, size = _unknown(window.run), block_size(window.run)
        if size is None or why or not window.num_steps:
            return cls(np.full(window.num_steps, np.nan), why)
        scheduled, seated = window.values("num_reqs"), window.values("slots_busy")
        known = (scheduled == window.values("running")) & (scheduled == seated)
        held = window.values("blocks_used").astype(np.int64) * size
        tokens = np.where(known, held - window.values("context_tokens"), np.nan)
        return cls(tokens, "" if known.any() else "some who hold blocks have no rows in each step")


def _unknown(run: Run) -> str:
    if block_size(run) is None:
        return "this run does not tell its block size"
    return "blocks are shared by prefix caching" if run.column("steps", "cached_tokens").any() else ""


def block_size(run: Run) -> int | None:
    """KV positions of a block, where the run's meta tells it."""
    config = run.meta.get("config")
    size = config.get("block_size") if isinstance(config, Mapping) else None
    return size if isinstance(size, int) and size > 0 else None


def draw(scene: Scene) -> Figure:
    """Stacked blocks; with many steps the mean over each piece, and the most in use as a line."""
    frame = Frame(scene, y="KV blocks")
    for row, window in enumerate(scene.windows):
        _fill(frame, row, window)
    frame.layout["hovermode"] = "x unified"
    return frame.figure()


def _fill(frame: Frame, row: int, window: Window) -> None:
    tail = Tail.of(window)
    unknown = f"tail not known: {tail.why}" if tail.why else ""
    hover_head(frame, row, window, _texts(window))
    used, cached, total = (window.level(name) for name in ("blocks_used", "blocks_cached", "blocks_total"))
    colors = frame.scene.look.kinds
    layers = [
        {"name": "in use", "color": colors["used"], "values": used},
        {"name": "cached", "color": colors["cached"], "values": cached},
        {"name": "free", "color": colors["free"], "values": total - used - cached},
    ]
    stack(frame, row, window, layers, "blocks")
    _lines(frame, row, window, tail)
    pool = int(window.most("blocks_total").max(initial=0.0))
    if pool:
        frame.line(row, pool, f"pool: {pool:,} blocks")
    frame.note("; ".join(filter(None, (window.level_means, unknown))), row=row, right=True)


def _texts(window: Window) -> list[str]:
    """Which steps a piece is, and the extremes that no line shows."""
    texts = piece_texts(window)
    if window.exact:
        return texts
    free = window.values("blocks_total") - window.values("blocks_used") - window.values("blocks_cached")
    extremes = zip(window.most("blocks_cached").tolist(), window.least(free).tolist(), strict=True)
    return [
        f"{text}<br>at most {cached:,.0f} cached, at least {least:,.0f} free"
        for text, (cached, least) in zip(texts, extremes, strict=True)
    ]


def _lines(frame: Frame, row: int, window: Window, tail: Tail) -> None:
    look, outline = frame.scene.look, window.outline
    x = typed(outline.x)
    if not window.exact:
        frame.add(row, type="scatter", mode="lines", name="in use: most of a step", x=x, hovertemplate="%{y:,}",
                  y=typed(outline.y(window.most("blocks_used")).astype(np.float32)),
                  line={"shape": "hv", "width": 1, "color": look.ink})  # fmt: skip
    size = block_size(window.run)
    if size is None or tail.why or not window.num_steps:
        return
    most = window.most(np.nan_to_num(tail.tokens, nan=-1.0)) / size
    name = "tail: held, not written" if window.exact else "tail: most of a step"
    drawn = outline.y(np.where(most < 0, np.nan, most)).astype(np.float32)
    frame.add(row, type="scatter", mode="lines", name=name, x=x, y=typed(drawn),
              hovertemplate=f"%{{y:,.3~g}} blocks' worth of {size} tokens",
              line={"shape": "hv", "width": 1.5, "color": look.kinds["prefill"]})  # fmt: skip


def _mean(window: Window, used: npt.NDArray[Any]) -> float:
    """Over the time of the steps in view; over steps where they take none."""
    weights = step_weights(window.values("t_start_s"), window.values("t_end_s"))
    return float(np.average(used, weights=weights if weights.sum() > 0 else None))


def words(scene: Scene) -> str:
    """How full the pool was."""
    return " ".join(_sentence(scene, index, window) for index, window in enumerate(scene.windows))


def _sentence(scene: Scene, index: int, window: Window) -> str:
    used, total = window.values("blocks_used"), window.values("blocks_total")
    if not window.num_steps:
        return f"{scene.label(index)}: no step in view."
    cached, pool = int(window.values("blocks_cached").max()), int(total.max())
    share = f", {used.max() / pool:.0%} of the pool" if pool else ""
    tail = Tail.of(window)
    end = (
        f"The tail is not known: {tail.why}." if tail.why else f"The tail reaches {np.nanmax(tail.tokens):,.0f} tokens."
    )
    return (
        f"{scene.label(index)}: of {pool:,} KV blocks {_mean(window, used):,.0f} are in use in the mean over time, "
        f"{int(used.max()):,} at most{share}; up to {cached:,} are kept cached. {end}"
    )


def table(scene: Scene) -> pd.DataFrame:
    """One row a step in view; ``tail_tokens`` is empty where it cannot be known."""
    return step_rows(scene, _COLUMNS, lambda window: {"tail_tokens": Tail.of(window).tokens})


PANEL = Panel(
    key="kv",
    title="KV blocks",
    question="How full the KV cache is, what the prefix cache keeps, and what is held but not yet written.",
    draw=draw,
    words=words,
    table=table,
)
