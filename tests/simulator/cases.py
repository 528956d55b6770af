"""Small workloads and servers whose results can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.workload import Workload


def even(n: int, gap_s: float, *, prompt: int = 8, output: int = 10) -> Workload:
    """Like requests, `gap_s` apart (0: all at once)."""
    return Workload(np.arange(n) * gap_s, np.full(n, prompt), np.full(n, output), name="even")


def one_slot(step_s: float = 0.1, **more: Any) -> dict[str, Any]:
    """Settings of a server with one slot whose steps all take `step_s`: a request with N outputs takes N of them."""
    return {"cost": f"linear:step_s={step_s}", "max_num_seqs": 1, "num_blocks": 1000, **more}
