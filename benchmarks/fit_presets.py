"""Fit the presets `azure-conv` and `azure-code` to the quantiles of the Azure 2023 files, and measure the fit.

    python benchmarks/fit_presets.py [FOLDER]

FOLDER (default: ``$BATCHSCOPE_DATA`` or ``../shared/data``) holds ``workloads/AzureLLMInferenceTrace_{conv,code}.csv``.
Prints JSON: the parameters as they stand in ``traces/presets.py``, and the errors of the presets there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from traces.formats import read_workload
from traces.presets import GAP_KNOTS, LENGTH_KNOTS, PRESETS
from traces.workload import FloatArray, Workload

CHECKED = tuple(float(q) for q in np.round(np.arange(0.02, 0.99, 0.01), 2))
"""Quantiles at which the fit is judged: every hundredth, knots and the places between them alike."""


def parameters(measured: Workload) -> dict[str, Any]:
    """What `traces/presets.py` holds: lengths in whole tokens and gaps in three digits at the knots."""
    gaps = np.quantile(np.diff(measured.arrival_s), GAP_KNOTS)
    return {
        "prompt": np.round(np.quantile(measured.prompt_tokens, LENGTH_KNOTS)).astype(int).tolist(),
        "output": np.round(np.quantile(measured.output_tokens, LENGTH_KNOTS)).astype(int).tolist(),
        "gaps": [float(f"{gap:.3g}") for gap in gaps],
        "rate": round(measured.rate_per_s or 0, 2),
        "gap_cv": round(float(measured.stats()["interarrival_cv"]), 2),
        "rank_correlation": round(rank_correlation(measured), 2),
    }


def errors(measured: Workload, drawn: Workload) -> dict[str, Any]:
    """Relative errors of the drawn workload's mean, quantiles, rate and burstiness."""
    return {
        "prompt": column_errors(measured.prompt_tokens, drawn.prompt_tokens),
        "output": column_errors(measured.output_tokens, drawn.output_tokens),
        "gap": column_errors(np.diff(measured.arrival_s), np.diff(drawn.arrival_s)),
        "rate": relative(drawn.rate_per_s or 0, measured.rate_per_s or 1),
        "gap_cv": [round(float(w.stats()["interarrival_cv"]), 2) for w in (measured, drawn)],
        "rank_correlation": [round(rank_correlation(w), 2) for w in (measured, drawn)],
    }


def column_errors(measured: Any, drawn: Any) -> dict[str, float]:
    """Mean and largest relative error over `CHECKED`, that of the mean, and the largest distance of the two CDFs."""
    ours, theirs = np.quantile(drawn, CHECKED), np.quantile(measured, CHECKED)
    off = np.abs(ours / theirs - 1)
    worst = int(np.argmax(off))
    return {
        "mean": relative(float(np.mean(drawn)), float(np.mean(measured))),
        "quantiles_mean": round(float(off.mean()), 4),
        "quantiles_max": round(float(off[worst]), 4),
        "at": CHECKED[worst],
        "cdf_distance": round(cdf_distance(measured, drawn), 4),
    }


def cdf_distance(a: FloatArray, b: FloatArray) -> float:
    """Kolmogorov and Smirnov's: the largest difference of the two empirical distribution functions."""
    points = np.concatenate([a, b])
    left = np.searchsorted(np.sort(a), points, side="right") / len(a)
    right = np.searchsorted(np.sort(b), points, side="right") / len(b)
    return float(np.abs(left - right).max())


def rank_correlation(workload: Workload) -> float:
    """Spearman's, of prompt and output lengths (ties in file order)."""
    ranks = [np.argsort(np.argsort(c, kind="stable")) for c in (workload.prompt_tokens, workload.output_tokens)]
    matrix: FloatArray = np.asarray(np.corrcoef(ranks))
    return float(matrix[0, 1])


def relative(value: float, reference: float) -> float:
    """``value / reference - 1``."""
    return round(value / reference - 1, 4)


def main() -> None:
    """Print parameters and errors of both presets."""
    default = os.environ.get("BATCHSCOPE_DATA", Path(__file__).resolve().parent.parent.parent / "shared" / "data")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else default) / "workloads"
    report = {}
    for name in ("conv", "code"):
        measured = read_workload(folder / f"AzureLLMInferenceTrace_{name}.csv")
        drawn = PRESETS[f"azure-{name}"].generator.workload(200_000, seed=0)
        report[f"azure-{name}"] = {"parameters": parameters(measured), "errors": errors(measured, drawn)}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
