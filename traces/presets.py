"""Named workloads: presets fitted to the Azure 2023 traces, and the default that needs no file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from scheduler.errors import ConfigError, InputError

from .arrivals import GapQuantiles, Poisson
from .generate import Generator
from .lengths import LogNormal, Quantiles
from .workload import Workload, cut

_TWENTIETHS = tuple(i / 20 for i in range(1, 20))
LENGTH_KNOTS = (0.0, 0.01, 0.02, *_TWENTIETHS, 0.98, 0.99, 0.999, 1.0)
"""Quantiles at which the presets' length distributions equal those of the measured file."""
GAP_KNOTS = (0.0, 0.01, 0.02, *_TWENTIETHS, 0.98, 0.99, 0.995, 0.998, 0.999, 1.0)
"""The same for the gaps between arrivals."""

# Parameters printed by benchmarks/fit_presets.py from AzureLLMInferenceTrace_{conv,code}.csv (Azure Public Dataset
# 2023, CC-BY-4.0); docs/workloads.md has the errors of the fit.
AZURE_CONV = Generator(
    GapQuantiles(GAP_KNOTS, (
        2e-06, 0.000546, 0.00144, 0.00632, 0.0161, 0.0264, 0.0365, 0.0483, 0.0607, 0.0735, 0.0873, 0.102, 0.118,
        0.138, 0.159, 0.183, 0.214, 0.247, 0.289, 0.346, 0.421, 0.565, 0.749, 0.89, 1.03, 1.25, 1.41, 4.31,
    )),
    Quantiles(LENGTH_KNOTS, (
        2, 29, 91, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020, 1045, 1071, 1097, 1130, 1189, 1315, 1876,
        2734, 4083, 4098, 4142, 6179, 14050,
    )),
    Quantiles(LENGTH_KNOTS, (
        7, 16, 24, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 451, 540,
        601, 954, 1000,
    )),
    same_quantile=0.07,
)  # fmt: skip
AZURE_CODE = Generator(
    GapQuantiles(GAP_KNOTS, (
        6e-06, 2.22e-05, 4.2e-05, 8.8e-05, 0.000209, 0.000885, 0.00118, 0.00208, 0.00329, 0.00534, 0.0151,
        0.0382, 0.0638, 0.0896, 0.095, 0.0979, 0.1, 0.104, 0.16, 0.199, 0.273, 0.401, 0.799, 2.21, 9.98, 41.4,
        79.2, 217.0,
    )),
    Quantiles(LENGTH_KNOTS, (
        3, 17, 35, 75, 147, 232, 386, 578, 770, 939, 1075, 1261, 1469, 1690, 1909, 2164, 2433, 2744, 3192, 3920,
        5188, 7303, 7436, 7436, 7437, 7437,
    )),
    Quantiles(LENGTH_KNOTS, (
        6, 6, 6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 29, 39, 55, 90, 171, 251, 825, 1899,
    )),
)  # fmt: skip
DEFAULT = Generator(
    Poisson(rate=8.0),
    LogNormal(mean=500, sigma=1.0, min=8, max=2048),
    LogNormal(mean=200, sigma=0.9, min=4, max=800),
)
"""Chat-like lengths at a rate that one GPU with an 8B model serves with room to spare."""


@dataclass(frozen=True)
class Preset:
    """A named generator and how many requests it makes unless told otherwise."""

    generator: Generator
    requests: int
    about: str


PRESETS = {
    "azure-conv": Preset(AZURE_CONV, 2000, "Azure 2023 conversation service: 5.5 requests/s, 1,155 in, 211 out"),
    "azure-code": Preset(AZURE_CODE, 2000, "Azure 2023 code completion: long prompts, short outputs, long silences"),
    "default": Preset(DEFAULT, 300, "300 chat-like requests, Poisson at 8/s"),
}


def default_workload(*, requests: int | None = None, seed: int = 0) -> Workload:
    """The workload of commands that are given none."""
    return resolve_workload("default", requests=requests, seed=seed)


def resolve_workload(
    name_or_path: str | Path,
    *,
    requests: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    sort: bool = False,
    skip_bad: bool = False,
    hash_block: int | None = None,
    span_s: tuple[float, float] | None = None,
) -> Workload:
    """A workload from a preset's name or a file; a name that is both means the preset (``./name`` is the file).

    Args:
        name_or_path: one of `PRESETS`, or a file of any known format.
        requests: so many (of a file: its first); None: the preset's number, or all.
        rate: requests per second on average; arrival times are stretched to it.
        seed: of a preset or a ServeGen folder.
        sort: see `read_workload`.
        skip_bad: see `read_workload`.
        hash_block: see `read_workload`.
        span_s: see `read_workload`.

    Raises:
        InputError: neither a preset nor a readable file.
        ConfigError: an option out of range.
    """
    if str(name_or_path) in PRESETS:
        made = _generated(str(name_or_path), requests, rate, seed)
        return made if span_s is None else cut(made, span_s)
    path = Path(name_or_path)
    if not path.exists() and not path.is_symlink():
        raise _neither(str(name_or_path))
    from .formats import read_workload

    workload = read_workload(
        name_or_path, sort=sort, skip_bad=skip_bad, hash_block=hash_block, seed=seed, span_s=span_s
    )
    if requests is not None:
        workload = workload.head(requests)
    return workload if rate is None else at_rate(workload, rate)


def at_rate(workload: Workload, rate: float) -> Workload:
    """The same requests at `rate` requests per second on average; raises ConfigError where that makes no sense."""
    if not 0 < rate < float("inf"):
        raise ConfigError(f"rate is {rate}; expected requests per second > 0")
    measured = workload.rate_per_s
    if measured is None:
        raise ConfigError(f"workload {workload.name} has no rate to change: all of it arrives at once")
    return workload.scaled_rate(rate / measured)


def _generated(name: str, requests: int | None, rate: float | None, seed: int) -> Workload:
    preset = PRESETS[name]
    workload = preset.generator.workload(preset.requests if requests is None else requests, seed=seed, name=name)
    return workload if rate is None else at_rate(workload, rate)


def _neither(name: str) -> InputError:
    near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.6)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return InputError(f"there is no such file, nor such a preset{hint}; presets: {', '.join(PRESETS)}", path=name)
