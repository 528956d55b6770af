"""The laws hold for every policy on random workloads, and a bent figure is found and named."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.config import SchedulerConfig
from scheduler.errors import UserError
from scheduler.request import Request
from traces import schema
from traces.check import MOST_EXAMPLES, check
from traces.trace import Trace

from .plans import run_scheduler, two_requests

SIZES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=SIZES,
    policy=st.sampled_from(["chunked", "static", "slots", "orca", "prefill-first"]),
    layout=st.sampled_from(["padded", "ragged"]),
    async_scheduling=st.booleans(),
    plain=st.booleans(),
    aborts=st.lists(st.tuples(st.floats(0, 0.1), st.integers(0, 11)), max_size=2),
)
def test_random_runs_keep_every_law(
    sizes: list[tuple[int, int, int]],
    policy: str,
    layout: Any,
    async_scheduling: bool,
    plain: bool,
    aborts: list[tuple[float, int]],
) -> None:
    config = SchedulerConfig(policy=policy, layout=layout, max_num_seqs=3, max_num_batched_tokens=24, num_blocks=10,
                             block_size=8, max_model_len=64, async_scheduling=async_scheduling)  # fmt: skip
    requests = [
        Request(index, prompt, outputs, arrival_s=index * 0.002, eos_at=eos or None)
        for index, (prompt, outputs, eos) in enumerate(sizes)
    ]
    stops = [(time_s, index) for time_s, index in aborts if index < len(requests)]
    trace = run_scheduler(config, requests, aborts=stops, plain=plain)
    violations, counts = check(trace)
    assert violations == []
    assert counts == {}


def bend(path: Path, table: schema.Table, row: int, **values: float) -> Trace:
    """A copy of the trace of `two_requests`, in row files, with some figures of one row changed."""
    source = two_requests()
    path.mkdir()
    for file in source.path.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    rows = np.fromfile(path / f"{table.name}.rows", dtype=table.dtype)
    for name, value in values.items():
        rows[name][row] = value
    rows.tofile(path / f"{table.name}.rows")
    return Trace.open(path)


@pytest.mark.parametrize(
    ("table", "row", "values", "law", "where"),
    [
        (schema.STEPS, 1, {"prefill_tokens": 4}, "prefill + decode + recomputed + padding = computed", "step 1"),
        (schema.STEPS, 1, {"running": 3}, "running <= slots", "step 1"),
        (schema.STEPS, 2, {"blocks_used": 5, "blocks_cached": 4}, "blocks used + cached <= total", "step 2"),
        (schema.STEPS, 2, {"t_start_s": 9.0}, "t_start <= t_end", "step 2"),
        (schema.STEPS, 2, {"t_start_s": 1.5}, "t_start_s never decreases", "step 2"),
        (schema.STEPS, 2, {"t_end_s": 2.5, "t_start_s": 2.4}, "t_end_s never decreases", "step 2"),
        (schema.STEPS, 2, {"step": 7}, "steps are numbered one by one", "step 7"),
        (schema.STEPS, 0, {"device_s": -1.0}, "device_s >= 0", "step 0"),
        (schema.STEPS, 0, {"waiting": -1}, "waiting >= 0", "step 0"),
        (schema.STEPS, 0, {"wait_reason": 9}, "wait_reason is a known code", "step 0"),
        (schema.STEPS, 0, {"sampled": 2}, "sampled <= logits rows", "step 0"),
        (schema.STEPS, 0, {"finished": 1}, "requests finished in steps = requests", "whole trace"),
        (schema.STEPS, 0, {"admitted": 2}, "admissions = prefills", "whole trace"),
        (schema.REQUESTS, -1, {"first_token_s": 9.0}, "first_token_s <= finished_s", "request 1"),
        (schema.REQUESTS, -1, {"output_tokens": 0}, "who ended by itself was seated and got tokens", "request 1"),
        (schema.REQUESTS, -1, {"finish_reason": 0}, "who ended has a reason", "request 1"),
        (schema.REQUESTS, -1, {"prompt_tokens": 9}, "each prompt token is computed once or cached", "whole trace"),
        (schema.GAPS, 0, {"count": 2}, "N tokens delivered give N - 1 gaps", "whole trace"),
        (schema.SPAN_EVENTS, -1, {"tokens": 5}, "tokens in spans = tokens scheduled", "whole trace"),
    ],
)  # fmt: skip
def test_a_bent_figure_breaks_the_law_that_watches_it(
    tmp_path: Path, table: schema.Table, row: int, values: dict[str, float], law: str, where: str
) -> None:
    violations, counts = check(bend(tmp_path / "bent.trace", table, row, **values))
    assert (law, where) in {(violation.law, violation.where) for violation in violations}
    assert counts[law] >= 1


def test_two_requests_on_one_slot_are_found(tmp_path: Path) -> None:
    trace = bend(tmp_path / "bent.trace", schema.SPAN_EVENTS, 0, tokens=0)
    events = np.fromfile(trace.path / "spans.rows", dtype=schema.SPAN_EVENTS.dtype)
    events["slot"][events["slot"] == 1] = 0
    events.tofile(trace.path / "spans.rows")
    violations, _ = check(trace)
    assert "spans on a slot do not overlap" in {violation.law for violation in violations}


def test_only_a_few_examples_of_a_law_are_listed_but_all_are_counted(tmp_path: Path) -> None:
    trace = bend(tmp_path / "bent.trace", schema.STEPS, 0, step=0)
    rows = np.fromfile(trace.path / "steps.rows", dtype=schema.STEPS.dtype)
    many = np.repeat(rows[:1], 20)
    many["step"], many["running"] = np.arange(20), 99
    many.tofile(trace.path / "steps.rows")
    violations, counts = check(trace)
    law = "running <= slots"
    assert sum(violation.law == law for violation in violations) == MOST_EXAMPLES
    assert counts[law] == 20


def test_laws_on_totals_wait_for_the_end(tmp_path: Path) -> None:
    trace = bend(tmp_path / "bent.trace", schema.GAPS, 0, count=2)
    meta = json.loads((trace.path / "meta.json").read_text())
    (trace.path / "meta.json").write_text(json.dumps({**meta, "complete": False, "closed": False}))
    assert check(Trace.open(trace.path)) == ([], {})


def disk_of(size: int) -> Any:
    """An `os.write` to a disk that has room for so many bytes."""
    left, write = size, os.write

    def limited(fd: int, data: Any) -> int:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(fd, data[:left])
        left -= written
        return written

    return limited


@pytest.mark.parametrize("policy", ["chunked", "static", "slots", "orca"])
@pytest.mark.parametrize("flush_every", [1, 7, 1024])
def test_a_trace_whose_disk_filled_up_at_any_byte_breaks_no_law_or_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, flush_every: int
) -> None:
    config = SchedulerConfig(policy=policy, max_num_seqs=3, max_num_batched_tokens=24, num_blocks=10, block_size=8,
                             max_model_len=64)  # fmt: skip
    kept = gone = 0
    for size in range(100, 25_000, 771):
        path = tmp_path / f"{size}.trace"
        requests = [Request(i, 5 + 7 * i % 30, 3 + 5 * i % 20, arrival_s=i * 0.002) for i in range(12)]
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", disk_of(size))
            try:
                run_scheduler(config, requests, path=path, flush_every=flush_every, plans=True, token_times=True)
                break  # all of it has room
            except UserError:
                pass
        if path.exists():
            kept += 1
            assert check(Trace.open(path)) == ([], {})
        else:
            gone += 1
    assert gone > 0
    assert kept > 0
    assert list(tmp_path.glob(".*")) == []
