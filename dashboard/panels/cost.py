"""What a step costs, part by part, beside what memory alone and arithmetic alone would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dashboard.data.window import Window
from dashboard.look import Figure, Look
from dashboard.numbers import seconds
from dashboard.scene import Scene
from simulator.bounds import SHAPE_COLUMNS, step_shapes
from traces.run_table import count

from .base import Panel
from .frame import Frame, hover_head, piece_texts, stack, typed
from .pricing import Pricing, pricing_of

MOST_PRICED = 300
"""Steps priced again over all runs: some milliseconds."""
Floats = npt.NDArray[np.float64]
_GROUPS = {
    "gemm": "matrix products", "attention": "attention", "lm_head": "LM head", "step": "fixed",
    "request": "per request",
}  # fmt: skip
"""Part as cost models name it -> its layer in the figure; parts beyond these are stacked as `_REST`."""
_LINEAR = {"gemm": "per row", "attention": "per KV position", "lm_head": "per logits row"}
_REST = "other device parts"
_HUES = {
    "matrix products": "decode", "per row": "decode", "attention": "queued", "per KV position": "queued",
    "LM head": "cached", "per logits row": "cached", "fixed": "padding", "per request": "none", "device": "decode",
    _REST: "padding",
}  # fmt: skip
_ROOFS = {"memory_roof": "memory alone", "compute_roof": "arithmetic alone"}
_FREE = {"memory alone": " if arithmetic were free", "arithmetic alone": " if memory traffic were free"}


@dataclass(frozen=True)
class Priced:
    """The step of each piece of a window that comes nearest to the piece's mean, priced again.

    Attributes:
        window: the pieces.
        rows: which rows of the run's steps, ``(pieces,)``.
        device_s, host_s: as recorded, seconds, ``(pieces,)``.
        parts: part -> device seconds by the cost model, each ``(pieces,)``; empty without a model.
        roofs: `memory_roof` and `compute_roof` -> device seconds, each ``(pieces,)``; empty where there are none.
        pricing: what priced them.
    """

    window: Window
    rows: npt.NDArray[np.int64]
    device_s: Floats
    host_s: Floats
    parts: dict[str, Floats]
    roofs: dict[str, Floats]
    pricing: Pricing

    @property
    def note(self) -> str:
        """What was priced by what."""
        note, extra = self.pricing.label, self.window.run.meta.get("extrapolation")
        if self.pricing.model is not None and self.window.run.source != "simulated":
            note = f"parts modelled, {note}"
        if isinstance(extra, Mapping):
            note += f", extrapolated in {extra.get('steps')} steps of the run"
        return note


def priced(scene: Scene) -> list[Priced]:
    """A typical step of each piece of each run in view."""
    most = max(MOST_PRICED // max(1, len(scene.runs)), 1)
    return [_price(Window.of(run, scene.view, scene.span, most)) for run in scene.runs]


def _price(window: Window) -> Priced:
    rows = _typical(window)
    device_s, host_s = (window.run.column("steps", name)[rows] for name in ("device_s", "host_s"))
    pricing = pricing_of(window.run)
    parts: dict[str, Floats] = {}
    limits: dict[str, Floats] = {}
    try:
        if pricing.model is not None and len(rows):
            parts, limits = _parts(window, rows, pricing)
    except (TypeError, ValueError, KeyError, ArithmeticError):  # a meta may hold anything
        pricing = Pricing(None, "its cost model cannot price its steps")
    return Priced(window, rows, device_s, host_s, parts, limits, pricing)


def _typical(window: Window) -> npt.NDArray[np.int64]:
    """Row of the step whose device seconds are nearest to the mean of its piece, ``(pieces,)``."""
    device_s = window.values("device_s")
    off = np.abs(device_s - np.repeat(window.mean("device_s"), window.counts))
    bounds = [*window.starts.tolist(), window.num_steps]
    found = [a + int(off[a:b].argmin()) for a, b in pairwise(bounds)]
    return np.asarray(found, dtype=np.int64) + window.low


def _parts(
    window: Window, rows: npt.NDArray[np.int64], pricing: Pricing
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    assert pricing.model is not None
    columns = {name: window.run.column("steps", name)[rows] for name in SHAPE_COLUMNS}
    shapes = step_shapes(columns, window.run.meta["layout"])
    told = [pricing.model.step_cost(shape).breakdown() for shape in shapes]
    parts = {name: np.array([parts[name] for parts in told]) for name in told[0] if name != "host"}
    limits = [np.array([roof.step_cost(shape).device_s for shape in shapes]) for roof in pricing.roofs]
    return parts, dict(zip(_ROOFS, limits, strict=bool(limits)))


def draw(scene: Scene) -> Figure:
    """Stacked parts of device time; with many steps those of a typical one of each piece, the dearest as a line."""
    frame = Frame(scene, y="ms a step")
    for row, found in enumerate(priced(scene)):
        _fill(frame, row, found)
    frame.layout["hovermode"] = "x unified"
    return frame.figure()


def _fill(frame: Frame, row: int, found: Priced) -> None:
    window, look = found.window, frame.scene.look
    hover_head(frame, row, window, _texts(found))
    layers = _layers(found) or {"device": found.device_s}
    stack(frame, row, window, [
        {"name": name, "color": look.kinds[_HUES[name]], "values": 1000 * values} for name, values in layers.items()
    ], "ms")  # fmt: skip
    for name, values, line in _lines(found, look):
        free = _FREE.get(name, "")
        frame.add(row, type="scatter", mode="lines", name=name, x=typed(window.outline.x),
                  y=typed(window.outline.y(1000 * values)), hovertemplate=f"%{{y:,.4~g}} ms{free}",
                  line={"shape": "hv", **line})  # fmt: skip
    most = int(window.counts.max(initial=0))
    grain = "" if window.exact else f"the step nearest the mean of up to {most:,}; "
    frame.note(grain + found.note, row=row, right=True)


def _texts(found: Priced) -> list[str]:
    steps = found.window.run.column("steps", "step")[found.rows].tolist()
    if found.window.exact:
        return [f"step {step:,}" for step in steps]
    pieces = piece_texts(found.window)
    return [f"step {step:,}, nearest to the mean of {piece}" for step, piece in zip(steps, pieces, strict=True)]


def _layers(found: Priced) -> dict[str, Floats]:
    """Layers of the figure, bottom first: parts by group."""
    model = found.pricing.model
    groups = {**_GROUPS, **_LINEAR} if model is not None and model.name in ("linear", "fitted") else _GROUPS
    layers: dict[str, Floats] = {}
    for part, group in groups.items():
        if part in found.parts and found.parts[part].any():
            layers[group] = found.parts[part]
    rest = [values for part, values in found.parts.items() if part not in groups]
    if rest and np.any(rest):
        layers[_REST] = np.sum(rest, axis=0)
    return layers


def _lines(found: Priced, look: Look) -> list[tuple[str, Floats, dict[str, Any]]]:
    """Lines over the layers: name, seconds ``(pieces,)``, style."""
    window, lines = found.window, []
    told = sum(found.parts.values(), np.zeros(len(found.rows)))
    if found.parts and not np.allclose(told, found.device_s, rtol=1e-3):
        how = "measured" if window.run.source != "simulated" else "simulated"
        lines.append((f"device, {how}", found.device_s, {"width": 1.5, "color": look.ink}))
    if not window.exact:
        lines.append(("device, dearest step", window.most("device_s"), {"width": 1, "color": look.muted}))
    host_s = window.most("host_s")
    if host_s.any():
        name = "host" if window.exact else "host, most of a step"
        lines.append((name, host_s, {"width": 1.5, "color": look.kinds["preempted"]}))
    for key, values in found.roofs.items():
        dash = "dash" if key == "memory_roof" else "dot"
        lines.append((_ROOFS[key], values, {"width": 1.5, "dash": dash, "color": look.ink}))
    return lines


def words(scene: Scene) -> str:
    """What the steps' device time goes into."""
    return " ".join(_sentence(scene, index, found) for index, found in enumerate(priced(scene)))


def _sentence(scene: Scene, index: int, found: Priced) -> str:
    window, label = found.window, scene.label(index)
    if not window.num_steps:
        return f"{label}: no step in view."
    device_s, host_s = window.values("device_s"), window.values("host_s")
    worst = int(device_s.argmax())
    text = (
        f"{label}: a step takes {seconds(device_s.mean())} of device time in the mean, {seconds(device_s[worst])} at "
        f"most (step {int(window.values('step')[worst]):,}), and {seconds(host_s.mean())} of host time."
    )
    layers = _layers(found)
    counts = window.counts  # each priced step stands for the steps of its piece
    whole = sum((values * counts).sum() for values in layers.values())
    if not whole:
        return f"{text} Parts are not known: {found.note}."
    shares = ", ".join(f"{name} {(values * counts).sum() / whole:.0%}" for name, values in layers.items())
    bound = _bound(found)
    typical = "" if window.exact else ", each standing for those around it"
    told = count(len(found.rows), "step")
    return f"{text} Of {told} priced{typical} ({found.note}): {shares}.{bound}{_doubt(found)}"


def _bound(found: Priced) -> str:
    if not found.roofs:
        return ""
    memory = int((found.roofs["memory_roof"] >= found.roofs["compute_roof"]).sum())
    return f" Memory is the higher roof in {memory:,} of them, arithmetic in {len(found.rows) - memory:,}."


def _doubt(found: Priced) -> str:
    extra = found.window.run.meta.get("extrapolation")
    return f" In doubt: {extra.get('reason')}." if isinstance(extra, Mapping) else ""


def table(scene: Scene) -> pd.DataFrame:
    """One row a step drawn (a typical one of each piece): recorded seconds, parts and roofs by the model, seconds."""
    frames = [pd.DataFrame(columns=["run", "step", "device_s", "host_s", "priced_by"])]
    for index, found in enumerate(priced(scene)):
        columns = {
            "step": found.window.run.column("steps", "step")[found.rows], "device_s": found.device_s,
            "host_s": found.host_s, **{f"model_{name}_s": values for name, values in found.parts.items()},
            **{f"model_{name}_s": values for name, values in found.roofs.items()},
        }  # fmt: skip
        frames.append(pd.DataFrame({"run": scene.runs[index].name, **columns, "priced_by": found.pricing.label}))
    return pd.concat(frames[1:] or frames, ignore_index=True)


PANEL = Panel(
    key="cost",
    title="Step cost",
    question="Where a step's device time goes, and whether memory or arithmetic sets its limit.",
    draw=draw,
    words=words,
    table=table,
)
