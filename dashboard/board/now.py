"""The step under the cursor, in words: a line for each run."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard.data.run import Run
from dashboard.data.window import end_of, step_edges
from dashboard.numbers import seconds
from dashboard.scene import Scene
from scheduler.plan import WAIT_REASONS

_WHY = {
    "seqs": "all seats are taken",
    "tokens": "the token budget is spent",
    "blocks": "no KV blocks are free",
    "batch-closed": "the batch takes nobody until it ends",
}
_TOKENS = (("decode_tokens", "decode"), ("prefill_tokens", "prefill"), ("recomputed_tokens", "recomputed"))


def cursor_x(scene: Scene) -> float | None:
    """Where the cursor stands in x; None: nowhere."""
    row = scene.cursor_rows[0] if scene.runs else None
    return None if row is None else float(step_edges(scene.runs[0], scene.view.axis)[0][row])


def now(scene: Scene) -> list[Any]:
    """A line for each run; empty without a cursor."""
    if cursor_x(scene) is None:
        return []
    return [
        html.Div([html.Span(scene.label(index), className="now-run"), *_told(scene, run, row)])
        for index, (run, row) in enumerate(zip(scene.runs, scene.cursor_rows, strict=True))
    ]


def _told(scene: Scene, run: Run, row: int | None) -> list[Any]:
    if row is not None:
        return [html.Span(step_sentence(run, row)), *_inspect(run, row)]
    end = end_of(run, scene.view.axis)
    when = seconds(end) if scene.view.axis == "time" else f"step {int(end) - 1:,}"
    return [html.Span(f"had ended at {when}" if run.num_steps else "holds no steps")]


def _inspect(run: Run, row: int) -> list[Any]:
    """A way to take the step apart, where its plan was kept."""
    if not run.meta.get("plans") or run.trace is None:
        return []
    step = int(run.column("steps", "step")[row])
    return [" · ", dcc.Link("inspect", href=f"/inspect?run={run.key}&step={step}")]


def step_sentence(run: Run, row: int) -> str:
    """What a step was: its number, time, tokens, seats, queue and blocks."""

    def of(name: str) -> Any:
        return run.column("steps", name)[row].item()

    useful = [f"{of(column):,} {kind}" for column, kind in _TOKENS if of(column)]
    padding = of("computed_tokens") - sum(of(column) for column, _ in _TOKENS)
    tokens = " + ".join([*useful, *([f"{padding:,} padding"] if padding else [])]) or "no"
    began, took = of("t_start_s") - run.origin_s, of("t_end_s") - of("t_start_s")
    parts = [
        f"step {of('step'):,} at {seconds(began)}, took {seconds(took)}",
        f"{tokens} tokens",
        f"{of('slots_busy')} of {of('slots_total')} seats",
        _queue(of("waiting"), WAIT_REASONS[of("wait_reason")]),
        f"{of('blocks_used'):,} of {of('blocks_total'):,} KV blocks",
    ]
    lost = of("preempted")
    return " · ".join([*parts, *([f"{lost} preempted"] if lost else [])])


def _queue(waiting: int, reason: str) -> str:
    if not waiting:
        return "nobody waits"
    why = _WHY.get(reason)
    return f"{waiting:,} wait" + (f": {why}" if why else "")
