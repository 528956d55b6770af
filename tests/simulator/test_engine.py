"""The simulated engine keeps time as the cost model says, and the fixed order of one instant."""

from __future__ import annotations

import numpy as np
import pytest

from simulator import simulate
from traces.trace import Trace
from traces.workload import Workload

SECOND = "linear:step_s=1.0,host_s=0.25"


def workload(arrivals: list[float], prompts: list[int], outputs: list[int]) -> Workload:
    return Workload(np.array(arrivals), np.array(prompts), np.array(outputs))


def times(trace: Trace, name: str) -> list[float]:
    return [float(value) for value in trace.requests[name]]


def test_host_time_is_added_when_synchronous() -> None:
    trace = simulate(workload([0.0], [10], [4]), cost=SECOND)
    assert times(trace, "first_token_s") == [1.25]
    assert times(trace, "finished_s") == [5.0]
    assert trace.steps["host_s"].tolist() == [0.25] * 4


def test_host_time_is_overlapped_when_asynchronous() -> None:
    trace = simulate(workload([0.0], [10], [4]), cost=SECOND, async_scheduling=True)
    assert times(trace, "first_token_s") == [1.25]
    assert times(trace, "finished_s") == [4.25]
    starts, ends = trace.steps["t_start_s"].to_numpy(), trace.steps["t_end_s"].to_numpy()
    assert (starts[1:] >= ends[:-1]).all(), "the device runs one step at a time"


def test_planning_that_takes_longer_than_the_device_paces_an_asynchronous_engine() -> None:
    trace = simulate(workload([0.0], [10], [4]), cost="linear:step_s=0.5,host_s=2.0", async_scheduling=True)
    assert np.diff(trace.steps["t_start_s"]).tolist() == [2.0, 2.0, 2.0]


def test_who_arrives_as_a_step_ends_is_in_the_next_step() -> None:
    trace = simulate(workload([0.0, 2.0], [10, 10], [5, 1]), cost="linear:step_s=1.0")
    assert times(trace, "scheduled_s") == [0.0, 2.0]
    assert times(trace, "queued_s") == [0.0, 2.0]


def test_who_arrives_during_a_step_is_handed_over_when_it_ends_but_its_latency_counts_from_arrival() -> None:
    trace = simulate(workload([0.0, 0.5], [10, 10], [2, 1]), cost="linear:step_s=1.0")
    assert times(trace, "arrival_s") == [0.0, 0.5]
    assert times(trace, "queued_s") == [0.0, 1.0]
    assert trace.summary()["ttft_s"]["mean"] == pytest.approx((1.0 + 1.5) / 2)


def test_equal_arrivals_keep_the_order_of_the_file() -> None:
    trace = simulate(workload([0.0] * 3, [9, 1, 5], [2, 2, 2]), cost="linear:step_s=1.0", max_num_seqs=1)
    assert times(trace, "scheduled_s") == [0.0, 2.0, 4.0]


def test_n_tokens_give_n_minus_1_itls_that_sum_to_the_time_between_first_and_last() -> None:
    lengths = ([3, 40, 7], [1, 12, 30])
    trace = simulate(workload([0.0, 0.3, 0.3], *lengths), cost="linear:step_s=0.01,token_s=0.001", token_times=True)
    token_times = trace.token_times()
    assert token_times is not None
    assert {request: len(found) for request, found in token_times.items()} == {0: 1, 1: 12, 2: 30}
    gaps = trace.gaps
    assert int(gaps["count"].sum()) == 0 + 11 + 29
    spans = sum(float(found[-1] - found[0]) for found in token_times.values())
    assert float((gaps["gap_s"] * gaps["count"]).sum()) == pytest.approx(spans)


def test_e2e_is_finish_less_arrival_whatever_the_preemptions() -> None:
    tight = {"num_blocks": 14, "block_size": 4, "max_model_len": 48, "cost": "linear:step_s=0.01"}
    trace = simulate(workload([0.0] * 4, [10] * 4, [20] * 4), **tight)
    figures = trace.summary()
    assert figures["preemptions"] > 0
    assert figures["finished"] == 4
    e2e = np.array(times(trace, "finished_s")) - np.array(times(trace, "arrival_s"))
    assert figures["e2e_s"]["mean"] == pytest.approx(e2e.mean())


def test_closed_loop_clients_never_exceed_their_number_and_think_between_requests() -> None:
    requests = workload([0.0] * 9, [5] * 9, [4] * 9)
    trace = simulate(requests, cost="linear:step_s=1.0", concurrency=2, think_s=3.0)
    assert int(trace.steps["running"].max()) == 2
    arrivals = sorted(times(trace, "arrival_s"))
    assert arrivals[:4] == [0.0, 0.0, 7.0, 7.0]
    assert trace.summary()["finished"] == 9


def test_without_thinking_a_client_sends_before_the_next_step_is_planned() -> None:
    trace = simulate(workload([0.0] * 4, [5] * 4, [1] * 4), cost="linear:step_s=1.0", concurrency=1)
    assert times(trace, "scheduled_s") == [0.0, 1.0, 2.0, 3.0]


def test_a_client_that_gives_up_frees_its_seat_for_the_next_step() -> None:
    both = workload([0.0, 0.0], [5, 5], [50, 3])
    trace = simulate(both, cost="linear:step_s=1.0", max_num_seqs=1, aborts=[(4.5, 0)])
    assert trace.requests["finish_reason"].tolist() == ["abort", "length"]
    assert times(trace, "finished_s") == [5.0, 8.0]


def test_a_static_batch_starts_at_its_timeout_and_delivers_all_at_once() -> None:
    trace = simulate(workload([0.0, 0.01], [5, 5], [2, 4]), policy="static", cost="linear:step_s=1.0")
    assert times(trace, "scheduled_s") == [0.05, 0.05]
    assert times(trace, "first_token_s") == times(trace, "finished_s") == [4.05, 4.05]
    figures = trace.summary()
    assert figures["tpot_s"] is None
    assert figures["itl_s"] is None


def test_eos_in_async_costs_one_overrun_row_that_is_charged_as_padding() -> None:
    early = Workload(np.array([0.0]), np.array([5]), np.array([3]), max_tokens=np.array([9]))
    options = {"cost": "linear:step_s=0.5,token_s=0.25", "async_scheduling": True}
    steps = simulate(early, **options).steps
    assert steps["padding_overrun"].tolist() == [0, 0, 0, 1]
    assert steps["padding_s"].tolist() == [0.0, 0.0, 0.0, 0.25]
    by_length = simulate(workload([0.0], [5], [3]), **options).steps
    assert by_length["padding_overrun"].sum() == 0
    assert len(by_length) == 3


POLICIES = ("static", "slots", "orca", "prefill-first", "chunked")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", ["padded", "ragged"])
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_fast_and_plain_scheduling_leave_the_same_trace(policy: str, layout: str, async_scheduling: bool) -> None:
    options = {
        "policy": policy, "layout": layout, "async_scheduling": async_scheduling, "max_num_seqs": 6, "block_size": 4,
        "num_blocks": 800, "max_model_len": 3000, "requests": 25, "rate": 12.0, "token_times": True,
    }  # fmt: skip
    fast, plain = simulate("default", **options), simulate("default", plain=True, **options)
    for table in ("steps", "spans", "requests", "gaps"):
        ours, theirs = fast.columns(table), plain.columns(table)
        for name in ours:
            assert np.array_equal(ours[name], theirs[name], equal_nan=ours[name].dtype.kind == "f"), (table, name)


def test_the_same_run_twice_leaves_the_same_bytes() -> None:
    options = {"requests": 30, "seed": 5, "policy": "chunked", "max_num_seqs": 8}
    first, second = (simulate("azure-conv", **options) for _ in range(2))
    for table in ("steps", "spans", "requests", "gaps"):
        one, two = first.columns(table), second.columns(table)
        assert all(one[name].tobytes() == two[name].tobytes() for name in one)


@pytest.mark.parametrize("layout", ["padded", "ragged"])
@pytest.mark.parametrize("prompt", [1, 2, 16])
def test_without_padded_rows_or_positions_no_time_is_charged_to_padding(prompt: int, layout: str) -> None:
    steps = simulate(workload([0.0], [prompt], [3]), policy="slots", layout=layout).steps
    assert steps["padding_prompt"].sum() == steps["padding_context"].sum() == 0
    assert steps["padding_s"].tolist() == [0.0, 0.0, 0.0]
