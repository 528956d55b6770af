"""Runs recorded by other tools: a run written down in their formats and simulated again comes out as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from scheduler.errors import ConfigError, InputError
from simulator.cli_validate import validate as command
from simulator.import_log import read_log
from simulator.measured import trace_times
from simulator.validate import validate
from tests.simulator import recordings
from tests.simulator.recordings import COST, FLAGS, SCHEDULER, SYSTEM, write
from traces.formats import read_workload

SERVER = {key: SYSTEM[key] for key in ("hardware", "cost")} | SCHEDULER


def errors(entries: dict[str, Any]) -> list[float]:
    return [entry["error"] for entry in entries.values() if entry["error"] is not None]


def result_of(path: Path, **more: Any) -> dict[str, Any]:
    return validate(path, **{**SERVER, **more}).result


@pytest.mark.parametrize("kind", ["bench", "guidellm"])
def test_a_result_with_single_requests_gives_the_run_back(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "result.json", getattr(recordings, kind)(recordings.run()))
    result = result_of(path)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert errors(result["latency"][name]) == pytest.approx([0.0] * 5, abs=1e-6)
    assert errors(result["run"]) == pytest.approx([0.0] * 3, abs=1e-6)
    assert (result["latency"]["itl_s"] is None) == (kind == "guidellm")  # which keeps means of requests only
    assert result["latency"]["queue_s"] is None
    assert set(result["not_recorded"]) >= {"queue_s", "scheduled_to_first_s", "running", "waiting", "kv_percent"}


def test_gaps_of_a_bench_result_are_itl(tmp_path: Path) -> None:
    result = result_of(write(tmp_path / "result.json", recordings.bench(recordings.run())))
    assert errors(result["latency"]["itl_s"]) == pytest.approx([0.0] * 5, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("bench", {"request_rate": "inf", "max_concurrency": 3}),
        ("guidellm", {"config": {"strategy": {"type_": "concurrent", "streams": 3}}}),
    ],
)
def test_clients_that_waited_are_simulated_as_clients(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    content = getattr(recordings, kind)(recordings.run(3), **changes)
    result = result_of(write(tmp_path / "result.json", content), model="llama-3.1-8b")
    assert result["clients"] == 3
    assert errors(result["latency"]["e2e_s"]) == pytest.approx([0.0] * 5, abs=1e-6)
    # a server half as fast must show in the makespan: replayed times of sending would hide it
    slow = result_of(tmp_path / "result.json", model="llama-3.1-8b", cost="linear:step_s=0.04,token_s=0.0001")
    assert slow["run"]["makespan_s"]["error"] > 0.5


def test_clients_need_no_recorded_times_of_sending(tmp_path: Path) -> None:
    content = recordings.bench(recordings.run(3), request_rate="inf", max_concurrency=3)
    del content["start_times"]
    result = result_of(write(tmp_path / "result.json", content))
    assert errors(result["latency"]["ttft_s"]) == pytest.approx([0.0] * 5, abs=1e-6)
    assert errors(result["run"]) == pytest.approx([0.0] * 3, abs=1e-6)


def test_without_times_of_sending_a_paced_run_needs_a_workload(tmp_path: Path) -> None:
    content = recordings.bench(recordings.run())
    del content["start_times"]
    path = write(tmp_path / "result.json", content)
    with pytest.raises(ConfigError, match=r"does not tell when requests were sent .* or its requests with --workload"):
        result_of(path)
    result = result_of(path, workload=recordings.workload())
    assert errors(result["latency"]["ttft_s"]) == pytest.approx([0.0] * 5, abs=1e-6)


def test_a_summary_is_compared_by_the_figures_it_has(tmp_path: Path) -> None:
    details = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
    whole = recordings.bench(recordings.run())
    times = trace_times(recordings.run(), planned=False)
    ttft_s = times.first - times.arrival
    figures = {"mean_ttft_ms": 1e3 * ttft_s.mean(), "median_ttft_ms": 1e3 * np.median(ttft_s),
               "p99_ttft_ms": 1e3 * np.percentile(ttft_s, 99), "std_ttft_ms": 1.0}  # fmt: skip
    path = write(tmp_path / "s.json", {key: whole[key] for key in whole if key not in details} | figures)
    with pytest.raises(ConfigError, match=r"is a summary without single requests; expected .* --save-detailed"):
        result_of(path)
    result = result_of(path, workload=recordings.workload())
    assert list(result["latency"]["ttft_s"]) == ["mean", "p50", "p99"]
    assert errors(result["latency"]["ttft_s"]) == pytest.approx([0.0] * 3, abs=1e-6)
    assert errors(result["run"]) == pytest.approx([0.0] * 3, abs=1e-6)
    assert result["latency"]["tpot_s"] is None


def test_failed_requests_are_left_out_and_told(tmp_path: Path) -> None:
    content = recordings.bench(recordings.run())
    content["errors"][5], content["output_lens"][5] = "Timeout", 0
    result = result_of(write(tmp_path / "result.json", content))
    assert result["requests"] == len(recordings.workload()) - 1
    assert any("1 requests failed" in note for note in result["notes"])


def test_older_guidellm_names_are_read(tmp_path: Path) -> None:
    new = recordings.guidellm(recordings.run())
    rows = new["benchmarks"][0]["requests"]["successful"]
    old = [
        {
            "prompt_tokens": row["prompt_tokens"], "output_tokens": row["output_tokens"],
            "start_time": row["request_start_time"], "end_time": row["request_end_time"],
            "first_token_time": row["request_start_time"] + row["time_to_first_token_ms"] / 1e3,
            "last_token_time": row["request_end_time"],
        }
        for row in rows
    ]  # fmt: skip
    content = {"benchmarks": [{"args": {"strategy": {"type_": "poisson"}}, "worker": {"backend_model": "llama-3.1-8b"},
               "total_count": {"successful": len(old)}, "requests": {"successful": old}}]}  # fmt: skip
    (tmp_path / "result.json").write_text(json.dumps(content, indent=4))
    assert errors(result_of(tmp_path / "result.json")["latency"]["e2e_s"]) == pytest.approx([0.0] * 5, abs=1e-6)


def test_a_sample_of_requests_is_not_taken_for_all(tmp_path: Path) -> None:
    content = recordings.guidellm(recordings.run())
    content["benchmarks"][0]["metrics"]["request_totals"]["successful"] = 400
    with pytest.raises(ConfigError, match="keeps 40 of 400 requests"):
        result_of(write(tmp_path / "result.json", content))


def test_one_of_several_benchmarks_is_chosen(tmp_path: Path) -> None:
    first = recordings.bench(recordings.run())
    second = {**first, "ttfts": [2 * each for each in first["ttfts"]]}
    path = write(tmp_path / "result.json", json.dumps(first) + "\n" + json.dumps(second))
    with pytest.raises(ConfigError, match="holds 2 benchmarks"):
        result_of(path)
    assert result_of(path, benchmark=2)["latency"]["ttft_s"]["mean"]["error"] == pytest.approx(-0.5)
    with pytest.raises(ConfigError, match="benchmark is 3; expected 1 to 2"):
        result_of(path, benchmark=3)


def test_a_log_gives_the_curves_back(tmp_path: Path) -> None:
    path = write(tmp_path / "vllm.log", recordings.log(recordings.run()))
    result = result_of(path, workload=recordings.workload(), model="llama-3.1-8b")
    series = result["series"]
    assert 0 < series["shift_s"] <= 1.0  # the log's first line with a request comes a second after that
    assert series["rmse"]["running"] == pytest.approx(0.0, abs=1e-9)
    assert series["rmse"]["waiting"] == pytest.approx(0.0, abs=1e-9)
    assert series["rmse"]["kv_percent"] <= 0.05  # the log's own rounding
    assert result["not_recorded"] == ["ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "scheduled_to_first_s"]
    assert abs(result["run"]["output_tokens_per_s"]["error"]) < 0.2


def test_looks_at_metrics_give_means_curves_and_bounds(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.txt", recordings.scrapes(recordings.run()))
    result = result_of(path, workload=recordings.workload())
    for name in ("ttft_s", "e2e_s", "queue_s"):
        entries = result["latency"][name]
        assert entries["mean"]["error"] == pytest.approx(0.0, abs=1e-9)
        assert all(entries[figure]["low"] <= entries[figure]["simulated"] for figure in ("p50", "p90", "p95", "p99"))
        assert all(entries[figure]["inside"] for figure in ("p50", "p90"))
    assert result["latency"]["tpot_s"] is None
    assert result["series"]["rmse"]["running"] == pytest.approx(0.0, abs=1e-9)
    assert abs(result["run"]["output_tokens_per_s"]["error"]) < 0.2


def test_one_look_gives_means_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.txt", recordings.metrics(recordings.run(), 1e9, 0.0, 0.0, 0.0))
    result = result_of(path, workload=recordings.workload())
    assert result["latency"]["ttft_s"]["mean"]["error"] == pytest.approx(0.0, abs=1e-9)
    assert result["series"] is None
    assert any("since the server's start" in note for note in result["notes"])


def test_looks_without_times_are_refused(tmp_path: Path) -> None:
    look = recordings.metrics(recordings.run(), 5.0, 0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="holds several looks without times; expected '# scraped SECONDS' before each"):
        result_of(write(tmp_path / "m.txt", look + look), workload=recordings.workload())


def test_a_server_started_anew_is_refused(tmp_path: Path) -> None:
    looks = [recordings.metrics(recordings.run(), t, 0.0, 0.0, 0.0) for t in (5.0, 1.0)]
    path = write(tmp_path / "m.txt", "".join(f"# scraped {t}\n{text}" for t, text in enumerate(looks)))
    with pytest.raises(InputError, match=r"was started anew before look 1\.000"):
        result_of(path, workload=recordings.workload())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("hello\n", "is no recorded run; expected the folder of a served run"),
        ('{"a": 1}', "is no recorded run"),
        ("vllm:num_requests_running 1\n", "does not say which requests were sent; give them with --workload"),
        (recordings.log.__doc__ or "", "is no recorded run"),
    ],
)
def test_what_is_no_recording_gets_one_sentence(content: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, ConfigError), match=sentence):
        result_of(write(tmp_path / "x.txt", content))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ttfts": None}, "ttfts is None; expected a list of numbers"),
        ({"ttfts": ["a"] * 40}, r"ttfts\[0\] is 'a'; expected a number >= 0"),
        ({"input_lens": [3]}, "lists of requests differ in length"),
        ({"max_concurrency": "many", "request_rate": "inf"}, "max_concurrency is 'many'"),
        ({"output_lens": [0] * 40}, "no request was answered"),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        result_of(write(tmp_path / "r.json", recordings.bench(recordings.run(), **changes)))


def test_what_a_file_does_not_hold_must_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "result.json", recordings.bench(recordings.run(), model_id="org/unheard-of"))
    with pytest.raises(ConfigError, match="does not say on which hardware it was measured; give --hardware"):
        validate(path, cost=COST)
    with pytest.raises(ConfigError, match="names a model that is not known here; give --model"):
        validate(path, cost=COST, hardware="a100-80gb")


def test_the_command_takes_the_servers_settings_and_tells_what_was_not_recorded(tmp_path: Path) -> None:
    path = write(tmp_path / "result.json", recordings.bench(recordings.run()))
    done = CliRunner().invoke(command, [str(path), *FLAGS])
    assert done.exit_code == 0, done.output
    assert "not recorded: queue, scheduled to first token, running requests" in done.stdout
    assert "note: times are the client's" in done.stdout


def test_a_result_is_a_workload_too(tmp_path: Path) -> None:
    for kind in ("bench", "guidellm"):
        found = read_workload(write(tmp_path / "r.json", getattr(recordings, kind)(recordings.run())))
        sent = recordings.workload()
        assert found.prompt_tokens.tolist() == sent.prompt_tokens.tolist()
        assert found.output_tokens.tolist() == sent.output_tokens.tolist()
        assert found.arrival_s == pytest.approx(sent.arrival_s, abs=1e-6)


@pytest.mark.parametrize(
    "line",
    [
        "INFO 12-31 23:59:58 metrics.py:386] Avg prompt throughput: 0.2 tokens/s, "
        "Avg generation throughput: 1.5 tokens/s, Running: 3 reqs, "
        "Swapped: 0 reqs, Pending: 2 reqs, GPU KV cache usage: 0.3%, CPU KV cache usage: 9.0%.",
        "(APIServer pid=1) INFO 2026-10-07 22:01:17,796 [loggers.py:248] Engine 000: "
        "Avg prompt throughput: 4.1 tokens/s, Avg generation throughput: 1.5 tokens/s, Running: 3 reqs, "
        "Waiting: 2 reqs, Preemptions: 7, "
        "GPU KV cache usage: 0.3%, Prefix cache hit rate: 0.0%, External prefix cache hit rate: 80.0%",
    ],
)
def test_lines_of_other_versions_are_read(line: str, tmp_path: Path) -> None:
    series = read_log(write(tmp_path / "vllm.log", line), recordings.workload()).series
    assert series is not None
    assert [each.tolist() for each in (series.running, series.waiting, series.kv_percent)] == [[3.0], [2.0], [0.3]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("09-02", "13-02"), "vllm.log, line 2: '13-02 13:00:00' is no time"),
        (("INFO 09-02 13:00:01", "INFO"), "line 3: has no time"),
        (("INFO 09-02 13:00:02", "INFO 09-02 12:00:02"), "line 4: goes back in time"),
        (("Waiting:", "Held:"), "line 2: misses Running, Waiting or KV cache usage"),
    ],
)
def test_wrong_lines_are_named(change: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    text = recordings.log(recordings.run()).replace(*change, -1 if change[0] in ("09-02", "Waiting:") else 1)
    with pytest.raises(InputError, match=sentence):
        read_log(write(tmp_path / "vllm.log", text), recordings.workload())


def test_a_log_of_several_engines_is_refused(tmp_path: Path) -> None:
    text = recordings.log(recordings.run())
    both = text + text.splitlines()[-1].replace("Engine 000", "Engine 001")
    with pytest.raises(InputError, match="has lines of 2 engines; expected those of one"):
        read_log(write(tmp_path / "vllm.log", both), recordings.workload())
