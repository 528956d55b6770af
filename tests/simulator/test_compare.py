"""Comparing policies: same requests for all, effects that multiply, one record a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.errors import ConfigError, RequestRefused, UserError
from simulator import compare
from tests.simulator.cases import even, one_slot
from traces.trace import Trace
from traces.workload import Workload

EXPECTED = (
    "policy", "layout", "requests", "steps", "makespan_s", "ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s",
    "output_tokens_per_s", "slot_occupancy", "padding_fraction", "padding_s", "preemptions", "recomputed_tokens",
    "cached_tokens", "saturated", "wall_s",
)  # fmt: skip


def test_every_run_serves_the_same_requests_and_has_every_figure() -> None:
    result = compare("default", requests=40).result
    assert [run["policy"] for run in result["runs"]] == ["static", "slots", "orca", "prefill-first", "chunked"]
    for run in result["runs"]:
        assert set(EXPECTED) <= set(run)
        assert run["requests"] == run["finished"] == 40
    assert len({round(run["output_tokens_per_s"] * run["makespan_s"]) for run in result["runs"]}) == 1


def test_effects_multiply_to_the_total() -> None:
    result = compare("default", requests=40, policies=["static", "slots", "chunked"]).result
    assert len(result["effects"]) == 2
    for effect in result["effects"]:
        for name in ("output_tokens_per_s", "makespan_s", "e2e_mean_s", "ttft_mean_s", "computed_tokens"):
            parts = effect[name]
            assert parts["layout"] * parts["policy"] == pytest.approx(parts["total"])


def test_one_more_run_separates_layout_from_policy_only_where_layouts_differ() -> None:
    apart = compare("default", requests=10, policies=["static", "chunked"]).result
    assert [(run["policy"], run["layout"]) for run in apart["runs_between"]] == [("static", "ragged")]
    alike = compare("default", requests=10, policies=["slots", "chunked"]).result
    assert alike["runs_between"] == []
    assert alike["effects"][0]["makespan_s"]["layout"] == 1.0


def test_in_the_same_layout_static_computes_no_padding_either() -> None:
    result = compare("default", requests=30, policies=["static"], layouts=["padded", "ragged"]).result
    padded, ragged = result["runs"]
    assert padded["padding_fraction"] > 0.3
    assert padded["padding_s"] > 0
    assert ragged["padding_fraction"] == ragged["padding_s"] == 0


def test_policies_do_not_matter_to_a_server_that_has_one_seat_and_one_request_at_a_time() -> None:
    result = compare(even(6, 10.0), policies=["slots", "orca", "prefill-first", "chunked"], **one_slot()).result
    assert len({(run["makespan_s"], run["e2e_s"]["mean"], run["steps"]) for run in result["runs"]}) == 1


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    def without_wall(jobs: int) -> list[dict[str, Any]]:
        runs = compare("default", requests=20, policies=["static", "chunked"], jobs=jobs).result["runs"]
        return [{**run, "wall_s": None} for run in runs]

    assert without_wall(1) == without_wall(2)


def test_traces_of_all_runs_are_kept_when_asked(tmp_path: Path) -> None:
    compare("default", requests=10, policies=["static", "chunked"], traces=tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["chunked-ragged.trace", "static-padded.trace", "static-ragged.trace"]
    assert Trace.open(tmp_path / names[0]).summary()["finished"] == 10


def test_runs_and_effects_come_as_tables() -> None:
    comparison = compare("default", requests=10, policies=["static", "chunked"])
    assert comparison.runs["ttft_s.p99"].notna().all()
    assert comparison.effects["to"].tolist() == ["chunked/ragged"]


def test_saturation_is_none_without_an_arrival_rate() -> None:
    (run,) = compare(even(5, 0.0), policies=["chunked"], **one_slot()).result["runs"]
    assert run["saturated"] is None


@pytest.mark.parametrize(("gap_s", "expected"), [(2.0, False), (0.5, True)])
def test_a_run_is_saturated_when_arrivals_outrun_service(gap_s: float, expected: bool) -> None:
    """Each request takes 1 s of the only seat."""
    (run,) = compare(even(60, gap_s), policies=["chunked"], **one_slot(0.1)).result["runs"]
    assert run["saturated"] is expected


def test_a_backlog_inside_one_large_batch_is_saturation_too() -> None:
    """Everybody is seated at once and nobody waits, but the work takes far longer than the arrivals did."""
    slow = "linear:step_s=0.01,token_s=0.02"
    (run,) = compare(even(80, 0.1, output=50), policies=["chunked"], cost=slow, max_num_seqs=100).result["runs"]
    assert run["saturated"] is True


def test_a_wrong_policy_or_setting_stops_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="did you mean 'orca'"):
        compare("default", policies=["static", "orka"])
    with pytest.raises(ConfigError, match=r"unknown setting 'max_num_seq' \(did you mean 'max_num_seqs'"):
        compare("default", max_num_seq=3)
    with pytest.raises(ConfigError, match="policies is empty"):
        compare("default", policies=[])


def test_a_request_that_one_of_the_policies_could_never_run_stops_before_anything_runs(tmp_path: Path) -> None:
    long = Workload(np.array([0.0]), np.array([100]), np.array([900]))
    with pytest.raises((RequestRefused, UserError), match="raise num_blocks to at least"):
        compare(long, policies=["chunked", "static"], num_blocks=20, traces=tmp_path)
    assert not list(tmp_path.iterdir())
