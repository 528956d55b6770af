"""Tests of validation against recorded runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from scheduler.errors import ConfigError, InputError
from simulator.cli_validate import validate as command
from simulator.devices import sheet_of_device
from simulator.reference import read_reference, trace_times
from simulator.validate import Validation, compare_runs, validate
from tests.conftest import ROOT
from traces.trace import Trace

VLLM = "reference/vllm-0.19-rtx4090-llama-3.1-8b"
SAMPLE = ROOT / "traces" / "samples" / "chunked.trace"
LINEAR = "linear:step_s=0.01"
FIGURES = ("mean", "p50", "p90", "p95", "p99")


@pytest.fixture(scope="module")
def vllm(data_dir: Path) -> Validation:
    return validate(data_dir / VLLM)


def test_every_latency_of_the_vllm_run_is_within_seven_tenths_of_a_percent(vllm: Validation) -> None:
    errors = {
        (latency, figure): vllm.result["latency"][latency][figure]["error"]
        for latency in ("ttft_s", "tpot_s", "e2e_s")
        for figure in FIGURES
    }
    assert max(map(abs, errors.values())) <= 0.007, errors


def test_scheduled_to_first_token_of_the_vllm_run_is_within_five_percent(vllm: Validation) -> None:
    entries = vllm.result["latency"]["scheduled_to_first_s"]
    assert all(abs(entries[figure]["error"]) <= 0.05 for figure in FIGURES)


def test_curves_of_the_vllm_run_follow(vllm: Validation) -> None:
    rmse = vllm.result["series"]["rmse"]
    assert rmse["running"] <= 1.5
    assert rmse["waiting"] <= 2.5
    assert rmse["kv_percent"] <= 3.0
    assert abs(vllm.result["run"]["makespan_s"]["error"]) <= 0.005
    assert vllm.result["extrapolation"] is None


def test_measured_figures_are_those_of_the_recording(vllm: Validation, data_dir: Path) -> None:
    lines = (data_dir / VLLM / "requests.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    ttft = [row["first_token_ts"] - row["queued_ts"] for row in rows]
    tpot = [(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in rows]
    latency = vllm.result["latency"]
    assert latency["ttft_s"]["p90"]["measured"] == pytest.approx(np.percentile(ttft, 90))
    assert latency["tpot_s"]["mean"]["measured"] == pytest.approx(np.mean(tpot))


def test_a_run_compared_with_itself_has_no_error() -> None:
    measured = read_reference(SAMPLE)
    trace = Trace.open(SAMPLE)
    trace.meta["cost_model"] = {"name": "none", "options": {}}
    result = compare_runs(measured, trace)
    for entries in (*result["latency"].values(), result["run"]):
        assert all(entry["error"] == 0 for entry in entries.values())
    assert set(result["series"]["rmse"].values()) == {0.0}


def test_figures_of_our_own_trace_are_those_of_its_summary() -> None:
    summary = Trace.open(SAMPLE).summary()
    latency = validate(SAMPLE, cost=LINEAR).result["latency"]
    for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s", "itl_s"):
        assert {figure: entry["measured"] for figure, entry in latency[name].items()} == pytest.approx(summary[name])


def test_requests_are_planned_when_the_second_last_step_is_done(vllm: Validation) -> None:
    planned, began = (trace_times(vllm.trace, planned=planned) for planned in (True, False))
    steps = vllm.trace.columns("steps", ["t_start_s", "t_end_s"])
    late = np.flatnonzero(planned.scheduled > planned.arrival + 1.0)  # those that waited for a seat
    assert len(late)
    for request in late:
        step = int(np.searchsorted(steps["t_start_s"], began.scheduled[request]))
        assert planned.scheduled[request] == steps["t_end_s"][step - 2]


@pytest.mark.parametrize(
    ("device", "sheet"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", None),
        ("x86_64 CPU, 2 threads", "cpu"),
    ],
)
def test_devices_find_their_sheet(device: str, sheet: str | None) -> None:
    found = sheet_of_device(device)
    assert (None if found is None else found.name) == sheet


def folder_of(tmp_path: Path, **changes: Any) -> Path:
    """A run of two requests."""
    meta: dict[str, Any] = {
        "model": "meta-llama/Llama-3.1-8B",
        "engine_kwargs": {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 512},
        "kv_cache": {"num_gpu_blocks": 40, "block_size": 16, "enable_prefix_caching": False},
        "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
    }
    request = {
        "input_toks": 20, "output_toks": 3, "queued_ts": 5.0, "scheduled_ts": 5.0, "first_token_ts": 5.1,
        "last_token_ts": 5.3,
    }  # fmt: skip
    meta.update(changes.get("meta", {}))
    rows = [request, {**request, **changes.get("request", {})}]
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "requests.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


def test_a_folder_without_tables_is_validated_with_a_given_cost_model(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with pytest.raises(ConfigError, match="holds no operator tables; give the cost model"):
        validate(folder)
    result = validate(folder, cost="linear:step_s=0.1").result
    assert result["latency"]["ttft_s"]["mean"] == pytest.approx({"measured": 0.1, "simulated": 0.1, "error": 0.0})
    assert result["latency"]["tpot_s"]["p99"]["error"] == pytest.approx(0.0)
    assert result["series"] is None
    assert result["latency"]["itl_s"] is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"meta": {"kv_cache": {}}}, "meta.json: has no field kv_cache.num_gpu_blocks"),
        ({"meta": {"engine_kwargs": {"max_model_len": "8k"}}}, "max_model_len is '8k'; expected a whole number"),
        ({"request": {"first_token_ts": None}}, "requests.jsonl, line 2: first_token_ts is None; expected a number"),
        ({"request": {"first_token_ts": 4.0}}, "line 2: queued_ts, scheduled_ts, .* go backwards"),
    ],
)
def test_wrong_recordings_get_one_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        validate(folder_of(tmp_path, **changes), cost=LINEAR)


def test_contents_of_other_requests_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    line = {"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [1]}
    rows = [line, {**line, "output_length": 4}]
    (folder / "workload.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(InputError, match=r"workload.jsonl, line 2: the request has other lengths"):
        validate(folder, cost=LINEAR)


def test_simulated_traces_are_no_reference() -> None:
    with pytest.raises(InputError, match="is a simulated run; expected a measured run"):
        read_reference(ROOT / "traces" / "samples" / "chunked-simulated.trace")


def test_the_command_prints_json_a_table_and_records_the_run(tmp_path: Path) -> None:
    arguments = [str(SAMPLE), "--cost", LINEAR]
    as_json = CliRunner().invoke(command, [*arguments, "--json", "--trace", str(tmp_path / "again.trace")])
    assert as_json.exit_code == 0
    result = json.loads(as_json.stdout)
    assert result["requests"] == 36
    assert Trace.open(tmp_path / "again.trace").meta["source"] == "simulated"
    shown = CliRunner().invoke(command, arguments)
    assert shown.exit_code == 0
    for text in ("TTFT, s", "scheduled to first token, s", "makespan, s", "RMSE", "worst of TTFT, TPOT and E2E"):
        assert text in shown.stdout


def test_the_command_warns_of_steps_beyond_the_tables(data_dir: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    vidur = data_dir / "profiles" / "vidur_a100_llama-3-8b_mlp.csv"
    options = ["--cost", f"profile:dir={vidur}", "--model", "llama-3-8b", "--hardware", "a100-80gb"]
    done = CliRunner().invoke(command, [str(folder), *options])
    assert done.exit_code == 0
    assert "steps were priced beyond the cost model's data" in done.stderr


def test_a_card_without_a_sheet_is_priced_at_mean_contexts_and_that_is_said(data_dir: Path, tmp_path: Path) -> None:
    folder = other_card(data_dir, tmp_path, "NVIDIA GeForce RTX 9999")
    result = validate(folder).result
    assert result["caveat"].startswith("decodes of unequal contexts are priced at their mean: no sheet of NVIDIA")
    even = validate(other_card(data_dir, tmp_path / "even"), cost=f"profile:dir={folder},uneven=false").result
    assert result["latency"] == even["latency"]
    assert even["caveat"] is None


def test_what_a_folder_lacks_is_said(data_dir: Path, tmp_path: Path) -> None:
    folder = other_card(data_dir, tmp_path)
    (folder / "workload.jsonl").unlink()
    (folder / "timeseries.csv").write_text("t,running,waiting,kv_cache_pct\n")
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({name: meta[name] for name in meta if name != "resolved_config"}))
    result = validate(folder, max_num_seqs=200).result
    assert [note.split(":")[0] for note in result["notes"]] == [
        "no workload.jsonl",
        "meta.json holds no resolved_config",
        "max_num_seqs is 200 here; the recorded run had 256",
    ]
    assert result["series"] is None


def other_card(data_dir: Path, folder: Path, name: str | None = None) -> Path:
    """A copy of the recorded run, of a card of another name."""
    shutil.copytree(data_dir / VLLM, folder, dirs_exist_ok=True)
    if name is not None:
        for path in (folder / "meta.json", folder / "profile_meta.yaml"):
            path.write_text(path.read_text().replace("NVIDIA GeForce RTX 4090", name))
    return folder
