"""Steps in view as the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from dashboard.data.window import Window
from dashboard.scene import Scene


def step_rows(
    scene: Scene, names: Sequence[str], more: Callable[[Window], Mapping[str, Any]] = lambda window: {}
) -> pd.DataFrame:
    """One row a step in view, of all runs.

    Args:
        scene: the runs.
        names: columns of `steps`.
        more: further columns of a run, each ``(steps,)``.
    """
    frames = [
        pd.DataFrame({"run": run.name, **{name: window.values(name) for name in names}, **more(window)})
        for run, window in zip(scene.runs, scene.windows, strict=True)
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["run", *names])
