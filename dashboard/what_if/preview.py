"""The workload that will run, before it runs: when requests arrive, how long they are, and a line of figures."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from dashboard.look import Figure, Look, axis, layout
from dashboard.numbers import digits, percent, seconds
from dashboard.panels.frame import typed
from dashboard.runs.workload_spec import UploadedWorkloads, workload_of
from traces.workload import Workload

BARS = 60
"""Bars of each figure."""
HEIGHT = 150
_KEPT = 4
_made: OrderedDict[bytes, Workload] = OrderedDict()
_one_at_a_time = threading.Lock()
"""Making a workload takes memory; several people at once would take it several times."""


def workload_shown(spec: Mapping[str, Any], uploads: UploadedWorkloads | None, seed: int) -> Workload:
    """The workload of a spec; the last few are kept. Raises UserError."""
    key = orjson.dumps([spec, seed], option=orjson.OPT_SORT_KEYS)
    with _one_at_a_time:
        if key not in _made:
            _made[key] = workload_of(spec, uploads, seed=seed)
        _made.move_to_end(key)
        while len(_made) > _KEPT:
            _made.popitem(last=False)
        return _made[key]


def arrivals_figure(workload: Workload, look: Look) -> Figure:
    """Arrivals per second over time."""
    start, end = float(workload.arrival_s[0]), float(workload.arrival_s[-1])
    if end <= start:
        return _sentence(look, f"All {len(workload):,} requests arrive at once.")
    counts, edges = np.histogram(workload.arrival_s, bins=BARS, range=(start, end))
    width = float(edges[1] - edges[0])
    bars = {
        "type": "bar", "x": typed(edges[:-1] + width / 2), "y": typed(counts / width), "width": width,
        "marker": {"color": look.accent, "line": {"width": 0}},
        "customdata": typed(counts), "hovertemplate": "%{y:.3~g} requests/s (%{customdata} in " + seconds(width)
        + ")<br>around %{x:.4~g} s<extra></extra>",
    }  # fmt: skip
    return _figure([bars], look, x="seconds", y="requests/s")


def lengths_figure(workload: Workload, look: Look) -> Figure:
    """How long prompts and outputs are; in logarithmic classes where they differ much."""
    both = np.concatenate([workload.prompt_tokens, workload.output_tokens])
    edges, logarithmic = _classes(both)
    data = [
        _outline(edges, np.histogram(lengths, bins=edges)[0], name, look.kinds[kind])
        for name, kind, lengths in (
            ("prompt", "prefill", workload.prompt_tokens),
            ("output", "decode", workload.output_tokens),
        )
    ]
    made = _figure(data, look, x="tokens", y="requests")
    if logarithmic:
        made["layout"]["xaxis"].update(type="log", dtick=1)
    return made


def stats_line(workload: Workload) -> str:
    """The workload in one line: requests, rate, burstiness, lengths, shared prefixes."""
    stats = workload.stats()
    rate, cv, share = stats["rate_per_s"], stats["interarrival_cv"], stats["prefix_share"]
    prompt, output = stats["prompt_tokens"], stats["output_tokens"]
    parts = [
        f"{stats['requests']:,} requests",
        "all at once" if rate is None else f"{digits(rate)} requests/s over {seconds(stats['last_arrival_s'])}",
        "" if cv is None else f"gaps vary by {cv:.2f} (Poisson: 1)",
        f"prompts {prompt['mean']:,.0f} tokens on average, at most {prompt['max']:,.0f}",
        f"outputs {output['mean']:,.0f}, at most {output['max']:,.0f}",
        "" if share is None else f"{percent(share)} of prompt tokens repeat an earlier prefix",
    ]
    return " · ".join(filter(None, parts))


def _classes(lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], bool]:
    """Edges of the classes, and whether they are logarithmic."""
    low, high = int(lengths.min()), int(lengths.max())
    if high > 20 * low:
        return np.unique(np.floor(np.geomspace(low, high + 1, BARS + 1))), True
    step = max(1, -(-(high + 1 - low) // BARS))
    return np.arange(low, high + 1 + step, step, dtype=np.float64) - 0.5, False


def _outline(edges: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], name: str, color: str) -> dict[str, Any]:
    """A histogram as one filled step line, so that two of them can lie over each other."""
    x = np.repeat(edges, 2)
    y = np.concatenate([[0], np.repeat(counts, 2), [0]])
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": typed(x), "y": typed(y), "fill": "tozeroy",
        "line": {"color": color, "width": 1.5}, "opacity": 0.85,
        "hovertemplate": "%{y:,} requests from %{x:,.0f} tokens<extra>" + name + "</extra>",
    }  # fmt: skip


def _figure(data: list[dict[str, Any]], look: Look, *, x: str, y: str) -> Figure:
    made = layout(look, height=HEIGHT, margin={"l": 44, "r": 10, "t": 22, "b": 34, "autoexpand": False})
    made["showlegend"] = len(data) > 1
    title = {"font": {"size": 11, "color": look.muted}, "standoff": 4}
    made["xaxis"] = axis(look, title={"text": x, **title}, showgrid=False, fixedrange=True)
    made["yaxis"] = axis(look, title={"text": y, **title}, rangemode="tozero", nticks=4, fixedrange=True)
    return {"data": data, "layout": made}


def _sentence(look: Look, text: str) -> Figure:
    made = _figure([], look, x="", y="")
    for name in ("xaxis", "yaxis"):
        made["layout"][name]["visible"] = False
    made["layout"]["annotations"] = [
        {"text": text, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False,
         "font": {"size": 12, "color": look.muted}}
    ]  # fmt: skip
    return made
