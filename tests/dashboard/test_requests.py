"""Requests as panels look at them: preemptions agree with the steps, moments find their step."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from dashboard.data import memo
from dashboard.data.requests import name_of, once, preemptions_of, times_of, x_of

from .runs import random_run, sample, simulated_run


@pytest.mark.parametrize("name", ["chunked", "chunked-simulated", "orca", "slots", "static"])
def test_every_preemption_is_told_once_with_its_step(name: str) -> None:
    run = sample(name)
    lost = preemptions_of(run)
    counts = np.bincount(lost.step, minlength=run.num_steps)
    assert counts.tolist() == run.column("steps", "preempted").tolist()
    per_request = np.bincount(lost.request, minlength=len(run.column("requests", "request")))
    assert per_request.tolist() == run.column("requests", "preemptions").tolist()


def test_a_victim_computes_again_what_it_had_less_what_the_prefix_cache_kept(tmp_path: Path) -> None:
    run = simulated_run(tmp_path, num_blocks=30, enable_prefix_caching=False)
    lost = preemptions_of(run)
    alone = [place for place in range(len(lost)) if (lost.request == lost.request[place]).sum() == 1]
    assert alone
    for place in alone:  # all that was computed, and the token that was sampled last
        assert lost.again_tokens[place] in (lost.lost_tokens[place], lost.lost_tokens[place] + 1)


def test_seats_and_times_of_preemptions_are_those_of_the_spans() -> None:
    run = sample("chunked")
    assert run.trace is not None
    spans, lost = run.trace.spans, preemptions_of(run)
    for place, request in enumerate(lost.request.tolist()):
        own = spans[spans["request"] == request]
        before = own[own["last_step"] == lost.step[place] - 1].iloc[-1]
        assert lost.slot[place] == before["slot"]
        assert lost.start_s[place] == before["end_s"]


def test_a_run_without_spans_has_no_preemptions() -> None:
    assert len(preemptions_of(random_run(3))) == 0


def test_the_end_of_a_step_stands_at_its_right_edge_and_its_middle_half_way() -> None:
    run = random_run(50)
    begins, ends = run.column("steps", "t_start_s"), run.column("steps", "t_end_s")
    assert x_of(run, "step", ends) == pytest.approx(np.arange(50) + 1)
    assert x_of(run, "step", (begins + ends) / 2) == pytest.approx(np.arange(50) + 0.5)
    assert x_of(run, "time", ends) == pytest.approx(ends - run.origin_s)
    assert np.isnan(x_of(run, "step", np.array([np.nan]))).all()


def test_times_are_those_of_the_metrics() -> None:
    run = sample("chunked")
    assert run.trace is not None
    assert np.nanmean(times_of(run).ttft_s) == pytest.approx(run.trace.summary()["ttft_s"]["mean"])


def test_what_is_kept_of_a_run_goes_with_it() -> None:
    run = random_run(3)
    number, made = id(run), []
    assert once(run, "x", lambda _: made.append(1) or 7) == once(run, "x", lambda _: 8) == 7
    assert made == [1]
    del run
    gc.collect()
    assert number not in memo._known


def test_a_long_name_keeps_its_end() -> None:
    assert name_of({3: "chatcmpl-000017"}, 3, 7) == "…000017"
    assert name_of({}, 3, 7) == "3"
