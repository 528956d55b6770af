"""Knobs: which setting to turn next for each bound, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler.config import SchedulerConfig
from traces.workload import Workload

from .models import WIDTHS
from .setup import SYSTEM_SETTINGS, Setup


@dataclass(frozen=True)
class Knob:
    """A change of one setting, or of the load (``rate``, ``concurrency``).

    Attributes:
        name: the setting.
        before, after: its values.
        measures_room: it does not make the run better but shows how much more the server could take.
    """

    name: str
    before: Any
    after: Any
    measures_room: bool = False

    def __str__(self) -> str:
        return f"{self.name} {_shown(self.before)} -> {_shown(self.after)}"

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"name": self.name, "before": self.before, "after": self.after}

    def applied(self, setup: Setup) -> Setup:
        """The setup with the knob turned; unchanged for a knob of the load."""
        if self.name in ("rate", "concurrency"):
            return setup
        if self.name in SYSTEM_SETTINGS:
            changed: dict[str, Any] = {self.name: self.after}
            return replace(setup, **changed)
        return replace(setup, scheduler={**setup.scheduler, self.name: self.after})


def knobs_for(bound: str, setup: Setup, concurrency: int | None, workload: Workload | None) -> list[Knob]:
    """What to turn for a bound, best first; only what would change something in this setup.

    Which knob goes with which bound is common practice, not a measurement; whether it helps is what a simulation shows.
    """
    values = {**vars(SchedulerConfig()), **setup.scheduler}
    return [knob for knob in _MAKERS[bound](setup, values, concurrency, workload) if knob is not None]


Values = Mapping[str, Any]
Knobs = list[Knob | None]


def _more_load(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    if concurrency is not None:
        return [Knob("concurrency", concurrency, 2 * concurrency, measures_room=True)]
    rate = None if workload is None else workload.rate_per_s
    return [None if rate is None else Knob("rate", rate, 2 * rate, measures_room=True)]


def _nothing(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    return []


def _less_padding(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    return [
        _changed("policy", values["policy"], "chunked" if values["policy"] == "static" else values["policy"]),
        _changed("layout", values["layout"], "ragged"),
        _changed("cudagraph_capture_sizes", values["cudagraph_capture_sizes"], ()),
    ]


def _less_host(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    return [_changed("async_scheduling", values["async_scheduling"], True), *_fewer_bytes(setup)]


def _more_blocks(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    if "num_blocks" in setup.scheduler:
        return [Knob("num_blocks", values["num_blocks"], 2 * values["num_blocks"])]
    used = setup.gpu_memory_utilization
    return [
        _changed("kv_memory", values["kv_memory"], "paged"),
        _narrower_kv(setup),
        Knob("gpu_memory_utilization", used, 0.95) if used < 0.95 else None,
        _more_devices(setup),
    ]


def _more_seats(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    return [_doubled("max_num_seqs", values), _chunked(values)]


def _more_budget(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    return [_doubled("max_num_batched_tokens", values), _chunked(values)]


def _open_batch(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    return [_chunked(values), _doubled("max_num_seqs", values)]


def _more_compute(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    return [*_fewer_bytes(setup), _more_devices(setup)]


def _less_context(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    return [_narrower_kv(setup), _more_devices(setup)]


def _fewer_weights(setup: Setup, values: Values, concurrency: int | None, workload: Workload | None) -> Knobs:
    more = None if concurrency is None else Knob("concurrency", concurrency, 2 * concurrency)
    return [more, _chunked(values), *_fewer_bytes(setup), _more_devices(setup)]


_MAKERS = {
    "arrivals": _more_load,
    "padding": _less_padding,
    "host": _less_host,
    "blocks": _more_blocks,
    "seqs": _more_seats,
    "tokens": _more_budget,
    "batch-closed": _open_batch,
    "compute": _more_compute,
    "attention": _less_context,
    "weights": _fewer_weights,
    "device": _nothing,
}


def _changed(name: str, before: Any, after: Any) -> Knob | None:
    return None if before == after else Knob(name, before, after)


def _doubled(name: str, values: Values) -> Knob:
    return Knob(name, values[name], 2 * values[name])


def _chunked(values: Values) -> Knob | None:
    return _changed("policy", values["policy"], "chunked")


def _fewer_bytes(setup: Setup) -> Knobs:
    """Weights at 8 bits; only a cost model that knows of widths would show it."""
    narrow = setup.cost == "roofline" and WIDTHS.get(setup.weight_dtype, 0) > 1
    return [Knob("weight_dtype", setup.weight_dtype, "fp8") if narrow else None]


def _narrower_kv(setup: Setup) -> Knob | None:
    narrow = setup.cost == "roofline" and WIDTHS.get(setup.kv_dtype, 0) > 1
    return Knob("kv_dtype", setup.kv_dtype, "fp8") if narrow else None


def _more_devices(setup: Setup) -> Knob | None:
    if setup.cost.partition(":")[0] != "roofline":
        return None
    return Knob("tensor_parallel", setup.tensor_parallel, 2 * setup.tensor_parallel)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "none" if value == () else str(value)
