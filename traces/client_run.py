"""What a load generator wrote down of a run: its requests as the client saw them, or figures alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError

from .workload import Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClientRequests:
    """Requests that were answered, in the order in which they were sent.

    Attributes:
        prompt_tokens, output_tokens: ``(requests,)``.
        sent_s: ``(requests,)`` seconds after the first was sent; None: not recorded.
        ttft_s: ``(requests,)`` seconds from sending to the first token.
        e2e_s: ``(requests,)`` seconds from sending to the last token.
        gaps_s: ``(gaps,)`` seconds between two deliveries, of all requests; None: not recorded.
    """

    prompt_tokens: Ints
    output_tokens: Ints
    sent_s: Floats | None
    ttft_s: Floats
    e2e_s: Floats
    gaps_s: Floats | None

    def __len__(self) -> int:
        return len(self.prompt_tokens)


@dataclass(frozen=True)
class ClientRun:
    """A result file of a load generator.

    Attributes:
        path: the file.
        tool: what wrote it.
        model: as it names the model; None: it does not.
        requests: None: it keeps none, or not all.
        clients: so many waited for their answers, each sending its next request then; None: requests came at times of
            their own.
        figures: latency (``ttft_s``, ...) -> figure (``mean``, ``p50``, ...) -> seconds, where there are no requests.
        totals: ``makespan_s``, ``output_tokens_per_s``, ``requests_per_s``, as far as they are recorded.
        notes: what one should know before one compares, a sentence each.
        why_no_arrivals: why it cannot be told when requests were sent; empty: it can.
    """

    path: Path
    tool: str
    model: str | None
    requests: ClientRequests | None = None
    clients: int | None = None
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    why_no_arrivals: str = ""

    def workload(self) -> Workload:
        """Its requests as they were sent; clients that waited have sent theirs all at the start.

        Raises:
            InputError: the file does not tell enough.
        """
        requests = self.requests
        if requests is None or self.why_no_arrivals:
            raise InputError(self.why_no_arrivals or "keeps no single requests", path=self.path)
        sent_s = np.zeros(len(requests)) if requests.sent_s is None else requests.sent_s
        return Workload(sent_s, requests.prompt_tokens, requests.output_tokens, name=self.path.stem)


def in_order(
    sent_s: Floats | None, prompt: Ints, output: Ints, ttft_s: Floats, e2e_s: Floats, gaps_s: Floats | None
) -> ClientRequests:
    """Requests put in the order in which they were sent; `sent_s` on any clock, seconds."""
    if sent_s is None:
        return ClientRequests(prompt, output, None, ttft_s, e2e_s, gaps_s)
    order = np.argsort(sent_s, kind="stable")
    after_s = np.round(sent_s[order] - sent_s.min(), 9)  # clocks since boot have no finer grain
    return ClientRequests(prompt[order], output[order], after_s, ttft_s[order], e2e_s[order], gaps_s)


def number(value: Any) -> float | None:
    """A JSON value as a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if np.isfinite(value) else None


def numbers(values: Any, name: str, path: Path, *, least: float = 0.0) -> Floats:
    """A JSON list of numbers; raises InputError, naming the field and the place of what is none."""
    if not isinstance(values, list):
        raise InputError(f"{name} is {_shown(values)}; expected a list of numbers", path=path)
    found = [number(value) for value in values]
    for place, value in enumerate(found):
        if value is None or value < least:
            raise InputError(f"{name}[{place}] is {_shown(values[place])}; expected a number >= {least:g}", path=path)
    return np.array(found, dtype=np.float64)


def same_length(columns: Mapping[str, Sequence[Any] | Floats], path: Path) -> None:
    """Raise InputError unless all have one length."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise InputError(f"lists of requests differ in length ({told}); expected one entry a request", path=path)


def _shown(value: Any) -> str:
    return repr(value)[:60]
