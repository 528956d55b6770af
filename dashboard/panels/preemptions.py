"""The preemption log: who lost its seat, when, and how much work went with it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from tsdownsample import MinMaxDownsampler

from dashboard.data.requests import Floats, Preemptions, name_of, preemptions_in_view
from dashboard.data.run import Run
from dashboard.data.window import Window
from dashboard.look import Figure
from dashboard.numbers import seconds
from dashboard.scene import Scene
from traces.run_table import count

from .base import Panel
from .frame import Frame, plain, typed

MOST_POINTS = 1500
"""Points over all runs; the extremes of what is left out stay."""


def draw(scene: Scene) -> Figure:
    """A mark for each loss of a seat: when, and how many tokens had been computed in it."""
    frame = Frame(scene, y="tokens lost")
    if not any(len(preemptions_in_view(window)[0]) for window in scene.windows):
        return frame.empty("No request lost its seat in this part.")
    for row, window in enumerate(scene.windows):
        lost, x = preemptions_in_view(window)
        _marks(frame, row, window.run, lost, x)
        if not len(lost):
            frame.yaxis(row, range=[0, 1], showticklabels=False)
        frame.note(_note(lost) if len(scene.runs) == 1 else count(len(lost), "preemption"), row=row, right=True)
    return frame.figure()


def _marks(frame: Frame, row: int, run: Run, lost: Preemptions, x: Floats) -> None:
    most = MOST_POINTS // len(frame.scene.runs)
    if len(lost) > most:
        downsampler = MinMaxDownsampler()
        keep = downsampler.downsample(lost.lost_tokens.astype(np.float64), n_out=most // 2 * 2)
        frame.note(f"{most:,} of {len(lost):,} drawn, highest and lowest kept", row=row)
        lost, x = lost.where(keep), x[keep]
    frame.add(
        row, type="scatter", mode="markers", name="loses its seat", showlegend=False, x=typed(x),
        y=typed(lost.lost_tokens), customdata=typed(lost.step), text=_texts(run, lost),
        hovertemplate="%{text}<extra></extra>",
        marker={"symbol": "x", "size": 8, "color": frame.scene.look.kinds["preempted"]}, cliponaxis=False,
    )  # fmt: skip


def _texts(run: Run, lost: Preemptions) -> list[str]:
    names = run.names()
    return [
        f"request {plain(name_of(names, request))} loses {f'slot {slot}' if slot >= 0 else 'its seat'} in step {step:,}"
        f"<br>{tokens:,} tokens computed there are dropped<br>{_return(end - start, steps, again)}"
        for request, slot, step, start, end, steps, tokens, again in zip(
            *(values.tolist() for values in (lost.request, lost.slot, lost.step, lost.start_s, lost.end_s,
                                             lost.out_steps, lost.lost_tokens, lost.again_tokens)),
            strict=True,
        )
    ]  # fmt: skip


def _return(out_s: float, steps: int, again: int) -> str:
    if again < 0:
        return "it does not come back in this trace"
    return f"out for {seconds(out_s)} ({count(steps, 'step')}), then computes {count(again, 'token')}"


def _note(lost: Preemptions) -> str:
    if not len(lost):
        return "no preemption"
    return f"{count(len(lost), 'preemption')}, {count(int(lost.lost_tokens.sum()), 'token')} dropped"


def words(scene: Scene) -> str:
    """How often, who and how much in each run."""
    return " ".join(_sentence(scene, index, window) for index, window in enumerate(scene.windows))


def _sentence(scene: Scene, index: int, window: Window) -> str:
    lost, _ = preemptions_in_view(window)
    hit = f", which {count(len(np.unique(lost.request)), 'request')} suffered" if len(lost) else ""
    return f"{scene.label(index)}: {_note(lost)}{hit}."


def table(scene: Scene) -> pd.DataFrame:
    """One row a preemption in view."""
    frames = [_rows(scene.runs[index], preemptions_in_view(window)[0]) for index, window in enumerate(scene.windows)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _rows(run: Run, lost: Preemptions) -> pd.DataFrame:
    names, back = run.names(), lost.again_tokens >= 0
    return pd.DataFrame(
        {
            "run": run.name,
            "request": lost.request,
            "name": [name_of(names, request, 1 << 20) for request in lost.request.tolist()],
            "slot": lost.slot,
            "step": lost.step,
            "lost_s": lost.start_s,
            "back_s": np.where(back, lost.end_s, np.nan),
            "out_steps": lost.out_steps,
            "lost_tokens": lost.lost_tokens,
            "tokens_when_back": np.where(back, lost.again_tokens, np.nan),
        }
    )


PANEL = Panel(
    key="preemptions",
    title="Preemptions",
    question="Who lost its seat for want of KV blocks, and how many computed tokens went with it.",
    draw=draw,
    words=words,
    table=table,
)
