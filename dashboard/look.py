"""Colours, fonts and the common layout of figures, light and dark.

The colours of what a step computes are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which people with
any colour vision tell apart; padding is hatched besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Figure = dict[str, Any]
"""A Plotly figure as plain data: ``{"data": [...], "layout": {...}}``."""

FONT = "Inter, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
"""Whatever the reader's machine has: nothing is fetched."""
RUN_NAMES = "ABCD"
RUN_DASHES = ("solid", "dash", "dot", "dashdot")
"""Runs differ by dash too, not by colour alone."""
MOST_RUNS = len(RUN_NAMES)


@dataclass(frozen=True)
class Look:
    """One theme.

    Attributes:
        name: ``light`` or ``dark``.
        ink: text.
        muted: text of less weight.
        grid: lines behind the data.
        paper: the page.
        card: what figures stand on.
        accent: the one colour of controls.
        kinds: what a row, a block or a moment is -> its colour.
        runs: colours of runs A to D.
        scale: sequential colour scale, low to high.
    """

    name: str
    ink: str
    muted: str
    grid: str
    paper: str
    card: str
    accent: str
    kinds: Mapping[str, str]
    runs: tuple[str, ...]
    scale: tuple[tuple[float, str], ...]


_KINDS = {
    "prefill": "#E69F00",
    "recomputed": "#D55E00",
    "preempted": "#D55E00",
    "cached": "#009E73",
    "queued": "#CC79A7",
    "seqs": "#CC79A7",
    "tokens": "#E69F00",
    "blocks": "#D55E00",
    "batch-closed": "#8C8C8C",
}

LIGHT = Look(
    name="light",
    ink="#1c2733",
    muted="#5d6b7a",
    grid="#e4e9ee",
    paper="#f6f8fa",
    card="#ffffff",
    accent="#0072B2",
    kinds={**_KINDS, "decode": "#0072B2", "padding": "#8A939C", "idle": "#eef1f4", "free": "#eef1f4", "used": "#0072B2",
           "none": "#9fb3c8"},
    runs=("#0072B2", "#D55E00", "#009E73", "#AA4499"),
    scale=((0.0, "#eef4f9"), (0.5, "#56B4E9"), (1.0, "#003f66")),
)  # fmt: skip
DARK = Look(
    name="dark",
    ink="#e6edf3",
    muted="#9aa7b4",
    grid="#2b343d",
    paper="#12171c",
    card="#1a2128",
    accent="#56B4E9",
    kinds={**_KINDS, "decode": "#56B4E9", "padding": "#78828c", "idle": "#232c34", "free": "#232c34", "used": "#56B4E9",
           "none": "#51606e"},
    runs=("#56B4E9", "#F08A4B", "#2CC295", "#D98CC8"),
    scale=((0.0, "#1d2932"), (0.5, "#2f7fb0"), (1.0, "#b9e1fb")),
)  # fmt: skip
_LOOKS = {look.name: look for look in (LIGHT, DARK)}


def look_named(name: str | None) -> Look:
    """The theme of that name; the light one for None or anything else (a link may hold anything)."""
    return _LOOKS.get(name or "", LIGHT)


def layout(look: Look, *, height: int, **more: Any) -> dict[str, Any]:
    """The layout every figure starts from: quiet, on a card, legend above and outside the data.

    Args:
        look: the theme.
        height: pixels.
        more: keys that replace or add to it.
    """
    return {
        "height": height,
        "margin": {"l": 56, "r": 56, "t": 30, "b": 40, "autoexpand": False},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": look.ink},
        "hoverlabel": {"bgcolor": look.card, "bordercolor": look.grid, "font": {"family": FONT, "color": look.ink}},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "xanchor": "left", "yref": "paper",
                   "font": {"size": 11, "color": look.muted}, "itemwidth": 30, "tracegroupgap": 0},
        "hovermode": "closest",
        "dragmode": "zoom",
        "bargap": 0,
        "showlegend": True,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": look.muted, "activecolor": look.accent},
        **more,
    }  # fmt: skip


PADDING_SHADES = {"prompt": 1.0, "finished-row": 0.75, "graph": 0.5, "overrun": 0.35}
"""Cause of padded rows -> how strong its colour is."""


def padding_color(look: Look, cause: str) -> str:
    """The colour of padded rows of a cause: all are hatched, and differ by strength."""
    color = look.kinds["padding"]
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{PADDING_SHADES[cause]})"


def axis(look: Look, **more: Any) -> dict[str, Any]:
    """An axis with light lines; titles are given in the text beside it where they would only repeat the unit."""
    return {
        "gridcolor": look.grid,
        "linecolor": look.grid,
        "zeroline": False,
        "ticks": "",
        "tickfont": {"size": 11, "color": look.muted},
        "title": {"font": {"size": 11, "color": look.muted}, "standoff": 6},
        "automargin": False,
        **more,
    }


def hatched(look: Look) -> dict[str, Any]:
    """A Plotly fill pattern for padding: told apart without colour."""
    return {"shape": "/", "fgcolor": look.kinds["padding"], "bgcolor": look.card, "size": 5, "solidity": 0.45}
