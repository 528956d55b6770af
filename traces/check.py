"""Whether a trace keeps the laws that every run obeys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scheduler.plan import WAIT_REASONS

from .schema import DECODE, FINISH_REASONS, PADDING, PADDING_COLUMNS, PREFILL

if TYPE_CHECKING:
    from .store import Columns
    from .trace import Trace

MOST_EXAMPLES = 5
"""Violations listed for one law; the rest is only counted."""
_SERVED = [FINISH_REASONS.index(name) for name in ("stop", "length")]
_ABNORMAL = [FINISH_REASONS.index(name) for name in ("none", "abort", "error")]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Violation:
    """A law that does not hold: where (``step 17``, ``request 3``), and the figures that show it."""

    law: str
    where: str
    detail: str

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def check(trace: Trace) -> tuple[list[Violation], dict[str, int]]:
    """All violations (at most five of a law), and how many there are of each law that is violated.

    Laws on totals are checked only where the trace is finished, those on tokens only where all requests ended by
    themselves. Raises InputError when a table cannot be read.
    """
    report = _Report()
    totals = _check_steps(report, trace)
    requests = trace.columns("requests")
    _check_requests(report, requests, streams=bool(trace.meta.get("streams", True)))
    spans = trace.columns("spans")
    # a trace that was cut may have spans of a step whose own row was lost
    _check_spans(report, spans, slots=max(totals["slots_total"], int(trace.meta.get("slots_total", 0))))
    if trace.status == "finished":
        _check_totals(report, trace, totals, requests, spans)
    return report.violations, report.counts


class _Report:
    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.counts: dict[str, int] = {}

    def rows(self, law: str, kind: str, numbers: npt.NDArray[Any], wrong: Mask, **figures: npt.NDArray[Any]) -> None:
        """Note the rows in which a law is broken, with some of their figures."""
        for at in np.flatnonzero(wrong)[:MOST_EXAMPLES]:
            detail = ", ".join(f"{name} {values[at]}" for name, values in figures.items())
            self._note(law, f"{kind} {numbers[at]}", detail)
        more = int(wrong.sum()) - MOST_EXAMPLES
        if more > 0:
            self.counts[law] += more

    def equal(self, law: str, **sides: float) -> None:
        """Note a law on totals that is broken: all sides must be equal."""
        if len(set(sides.values())) > 1:
            self._note(law, "whole trace", ", ".join(f"{name} {value}" for name, value in sides.items()))

    def _note(self, law: str, where: str, detail: str) -> None:
        self.counts[law] = self.counts.get(law, 0) + 1
        if self.counts[law] <= MOST_EXAMPLES:
            self.violations.append(Violation(law, where, detail))


_SUMMED = ("prefill_tokens", "decode_tokens", "recomputed_tokens", "sampled", "admitted", "preempted", "finished")


def _check_steps(report: _Report, trace: Trace) -> dict[str, int]:
    totals = dict.fromkeys((*_SUMMED, "slots_total"), 0)
    before: Columns | None = None
    for steps in trace.chunks("steps"):
        _check_step_rows(report, steps)
        _check_step_order(report, _with_last_of(before, steps))
        for name in _SUMMED:
            totals[name] += int(steps[name].sum())
        totals["slots_total"] = max(totals["slots_total"], int(steps["slots_total"].max()))
        before = steps
    return totals


def _with_last_of(before: Columns | None, steps: Columns) -> Columns:
    names = ("step", "t_start_s", "t_end_s")
    if before is None:
        return {name: steps[name] for name in names}
    return {name: np.concatenate([before[name][-1:], steps[name]]) for name in names}


def _check_step_rows(report: _Report, steps: Columns) -> None:
    number = steps["step"]
    parts = np.stack([steps[name] for name in _parts()]).sum(axis=0, dtype=np.int64)
    computed, running, busy, seats = (steps[n] for n in ("computed_tokens", "running", "slots_busy", "slots_total"))
    blocks = steps["blocks_used"] + steps["blocks_cached"]
    report.rows("prefill + decode + recomputed + padding = computed", "step", number, parts != computed,
                parts=parts, computed=computed)  # fmt: skip
    report.rows("running <= slots", "step", number, running > seats, running=running, slots=seats)
    report.rows("busy slots <= slots", "step", number, busy > seats, busy=busy, slots=seats)
    report.rows("blocks used + cached <= total", "step", number, blocks > steps["blocks_total"],
                used_and_cached=blocks, total=steps["blocks_total"])  # fmt: skip
    report.rows("sampled <= logits rows", "step", number, steps["sampled"] > steps["logits_rows"],
                sampled=steps["sampled"], logits_rows=steps["logits_rows"])  # fmt: skip
    report.rows("t_start <= t_end", "step", number, ~(steps["t_start_s"] <= steps["t_end_s"]),
                t_start_s=steps["t_start_s"], t_end_s=steps["t_end_s"])  # fmt: skip
    for name in ("device_s", "host_s", "padding_s"):
        report.rows(f"{name} >= 0", "step", number, ~(steps[name] >= 0), **{name: steps[name]})
    for name, values in steps.items():
        if values.dtype.kind == "i":
            report.rows(f"{name} >= 0", "step", number, values < 0, **{name: values})
    report.rows("wait_reason is a known code", "step", number, steps["wait_reason"] >= len(WAIT_REASONS),
                wait_reason=steps["wait_reason"])  # fmt: skip


def _parts() -> list[str]:
    return ["prefill_tokens", "decode_tokens", "recomputed_tokens", *PADDING_COLUMNS.values()]


def _check_step_order(report: _Report, steps: Columns) -> None:
    number, after = steps["step"], steps["step"][1:]
    report.rows("steps are numbered one by one", "step", after, np.diff(number) != 1, before=number[:-1])
    for name in ("t_start_s", "t_end_s"):
        values = steps[name]
        report.rows(f"{name} never decreases", "step", after, np.diff(values) < 0, before=values[:-1], then=values[1:])


def _check_requests(report: _Report, requests: Columns, *, streams: bool) -> None:
    number = requests["request"]
    times = ("arrival_s", "queued_s", "scheduled_s", "first_token_s", "finished_s")
    for earlier, later in _pairs(times, requests):
        wrong = requests[earlier] > requests[later]  # nan, never happened, compares as false
        report.rows(f"{earlier} <= {later}", "request", number, wrong,
                    **{earlier: requests[earlier], later: requests[later]})  # fmt: skip
    reason, output = requests["finish_reason"], requests["output_tokens"]
    served = np.isin(reason, _SERVED)
    untimed = np.isnan(requests["scheduled_s"]) | np.isnan(requests["first_token_s"])
    report.rows("who ended by itself was seated and got tokens", "request", number, served & (untimed | (output < 1)),
                output_tokens=output)  # fmt: skip
    ended = ~np.isnan(requests["finished_s"])
    report.rows("who ended has a reason", "request", number, ended != (reason > 0), finish_reason=reason)
    if not streams:
        late = served & (requests["first_token_s"] != requests["finished_s"])
        report.rows("all tokens at once: first token = finish", "request", number, late)


def _pairs(times: tuple[str, ...], requests: Columns) -> Iterator[tuple[str, str]]:
    """Neighbours in the order of events; and what must hold across ones that may be missing."""
    yield from pairwise(times)
    yield from (("queued_s", "finished_s"), ("scheduled_s", "finished_s"))


def _check_spans(report: _Report, spans: Columns, *, slots: int) -> None:
    seated = np.isin(spans["kind"], (PREFILL, DECODE, PADDING))
    slot = spans["slot"]
    report.rows("a span that computes has a slot", "request", spans["request"],
                seated & ((slot < 0) | (slot >= slots)), slot=slot)  # fmt: skip
    on_slots = {name: values[seated] for name, values in spans.items()}
    _check_apart(report, "spans on a slot do not overlap", on_slots, on_slots["slot"])
    _check_apart(report, "a request is in one span at a time", spans, spans["request"])


def _check_apart(report: _Report, law: str, spans: Columns, owner: npt.NDArray[Any]) -> None:
    order = np.lexsort((spans["last_step"], spans["first_step"], owner))
    first, last, owner = spans["first_step"][order], spans["last_step"][order], owner[order]
    overlap = (owner[1:] == owner[:-1]) & (first[1:] <= last[:-1]) & (last[1:] >= first[1:])
    report.rows(law, "step", first[1:], overlap, request=spans["request"][order][1:],
                other_request=spans["request"][order][:-1], slot=spans["slot"][order][1:])  # fmt: skip


def _check_totals(report: _Report, trace: Trace, totals: dict[str, int], requests: Columns, spans: Columns) -> None:
    output = requests["output_tokens"].astype(np.int64)
    if trace.meta.get("streams", True):
        gaps = int(trace.column("gaps", "count").sum(dtype=np.int64))
        report.equal(
            "N tokens delivered give N - 1 gaps", gaps=gaps, tokens_less_one=int(np.maximum(output - 1, 0).sum())
        )
    if np.isin(requests["finish_reason"], _ABNORMAL).any():
        return
    scheduled = totals["prefill_tokens"] + totals["decode_tokens"] + totals["recomputed_tokens"]
    report.equal("tokens in spans = tokens scheduled", spans=int(spans["tokens"].sum(dtype=np.int64)), steps=scheduled)
    report.equal("tokens sampled = tokens delivered", sampled=totals["sampled"], delivered=int(output.sum()))
    report.equal("requests finished in steps = requests", steps=totals["finished"], requests=len(output))
    report.equal("admissions = prefills", admitted=totals["admitted"], prefills=int((spans["kind"] == PREFILL).sum()))
    if totals["preempted"] == 0:
        prompts = int(requests["prompt_tokens"].sum(dtype=np.int64) - requests["cached_tokens"].sum(dtype=np.int64))
        report.equal("each prompt token is computed once or cached", prefill=totals["prefill_tokens"], prompts=prompts)
        report.equal("each output token but the last is computed once", decode=totals["decode_tokens"],
                     outputs=int((output - 1).sum()))  # fmt: skip
