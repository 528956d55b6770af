"""Measured traces with clients that wait, and with clients that give up: simulated as such."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.errors import ConfigError
from simulator import simulate
from simulator.calibrate import calibrate, write_cost
from simulator.reference import read_reference
from simulator.validate import validate
from tests.simulator.recordings import COST, SCHEDULER, SYSTEM, workload
from traces.store import WORKLOAD
from traces.trace import Trace
from traces.write_workload import write_workload

LONG = 400
"""Tokens that the requests which are given up would have made."""
GONE = ((0.9, 3), (2.0, 11))


def recorded(folder: Path, **load: Any) -> Path:
    """A simulated run in the clothes of a measured one, with the workload that an engine keeps of it."""
    sent = workload()
    if "aborts" in load:
        output = sent.output_tokens.copy()
        output[[request for _, request in load["aborts"]]] = LONG
        sent = replace(sent, output_tokens=output, max_tokens=output)
    simulate(sent, out=folder, **SYSTEM, **SCHEDULER, **load)
    meta = json.loads((folder / "meta.json").read_text())
    meta |= {"source": "measured", "hardware": "x86_64 CPU, 2 threads"}
    (folder / "meta.json").write_text(json.dumps(meta))
    write_workload(sent, folder / WORKLOAD)
    return folder


def all_errors(result: dict[str, Any]) -> list[float]:
    tables = [*(table for table in result["latency"].values() if table), result["run"]]
    return [entry["error"] for table in tables for entry in table.values() if entry["error"] is not None]


def test_clients_that_wait_set_the_pace_again(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.trace", concurrency=3, think_s=0.05)
    same = validate(path, cost=COST)
    assert same.result["clients"] == 3
    assert np.abs(all_errors(same.result)).max() < 1e-9
    slow = validate(path, cost="linear:step_s=0.04,token_s=0.0002,context_s=2e-7").result
    assert slow["run"]["makespan_s"]["error"] > 0.5  # recorded arrivals would have hidden it
    assert same.trace.meta["load"] == {"concurrency": 3, "think_s": 0.05}


def test_clients_that_give_up_do_so_again(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.trace", aborts=GONE)
    done = validate(path, cost=COST)
    assert np.abs(all_errors(done.result)).max() < 1e-9
    ended = done.trace.requests.set_index("request")["finish_reason"]
    assert ended[[request for _, request in GONE]].tolist() == ["abort"] * 2
    assert any("2 requests were given up" in note for note in done.result["notes"])


def test_requests_that_were_given_up_have_no_e2e(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.trace", aborts=GONE)
    measured, own = validate(path, cost=COST).result["latency"], read_reference(path)
    summary = Trace.open(path).summary()
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert measured[name]["mean"]["measured"] == pytest.approx(summary[name]["mean"])
    assert [request for _, request in own.aborts] == [request for _, request in GONE]


def test_clients_of_which_some_gave_up_keep_their_recorded_times(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.trace", aborts=GONE)
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"load": {"concurrency": 8}}))
    result = validate(path, cost=COST).result
    assert result["clients"] is None
    assert any("both together are not simulated" in note for note in result["notes"])


def test_clients_cannot_be_asked_for_where_requests_were_given_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="were given up; that is not simulated with --concurrency"):
        validate(recorded(tmp_path / "run.trace", aborts=GONE), cost=COST, concurrency=3)


def test_a_setting_given_replaces_the_recorded_one(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.trace")
    done = validate(path, cost=COST, max_num_seqs=8)
    assert done.trace.meta["config"]["max_num_seqs"] == 8
    assert done.result["latency"]["queue_s"]["mean"]["error"] < -0.1


def test_the_comparison_stands_in_the_simulated_trace_and_goes_with_it(tmp_path: Path) -> None:
    path, out = recorded(tmp_path / "run.trace"), tmp_path / "again.trace"
    done = validate(path, cost=COST, out=out)
    assert json.loads((out / "validation.json").read_text()) == {"version": 1, **done.result}
    simulate(workload(), out=out, **SYSTEM, **SCHEDULER)
    assert not (out / "validation.json").exists()


def test_a_run_beside_a_probe_is_priced_at_the_speed_of_its_machine(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.trace")
    ends_s = Trace.open(path).column("steps", "t_end_s").tolist()
    meta = json.loads((path / "meta.json").read_text())
    beside = {"t_s": ends_s, "seconds": [0.1] * len(ends_s)}
    (path / "meta.json").write_text(json.dumps({**meta, "probe": beside}))
    document = calibrate([path])
    assert document["probe_s"] == pytest.approx(0.1)
    half = {**document, "probe_s": 0.05}  # fitted when the machine was twice as fast
    for name, slowdown in (("same", 1.0), ("fast", 2.0)):
        write_cost(document if name == "same" else half, tmp_path / f"{name}.json")
        result = validate(path, cost=f"fitted:path={tmp_path / name}.json").result
        assert result["cost_model"]["options"]["slowdown"] == pytest.approx(slowdown)
        assert bool(result["notes"]) == (slowdown != 1.0)
    given = validate(path, cost=f"fitted:path={tmp_path}/fast.json,slowdown=1.5").result
    assert given["cost_model"]["options"]["slowdown"] == 1.5
