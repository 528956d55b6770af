"""`batchscope run`: answers, measured replays, and mistakes in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.cli import PROMPTS
from batchscope import main
from traces.probes import probes_of
from traces.trace import Trace

QUICK = ["--threads", "1", "--max-num-seqs", "4", "--max-model-len", "256", "--num-blocks", "200"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments, *QUICK])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def answers(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    return list(json.loads(out))


def test_without_arguments_it_answers_the_four_prompts_and_ends_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    said = answers(capsys)
    assert [answer["prompt"] for answer in said] == list(PROMPTS)
    assert {answer["finish_reason"] for answer in said} == {"stop"}
    assert "4" in said[0]["text"]
    assert "Paris" in said[3]["text"]
    assert len({answer["output_tokens"] for answer in said}) > 1


def test_a_prompt_can_be_sampled_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    first, again = (
        answers(capsys, "--prompt", "Tell me a story.", "--temperature", "1", "--max-tokens", "5", "--seed", "3")
        for _ in range(2)
    )
    assert first[0]["text"] == again[0]["text"]
    assert (first[0]["finish_reason"], first[0]["output_tokens"]) == ("length", 5)


def test_a_workload_is_measured_and_can_be_simulated_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,4\n0.01,30,6\n0.02,8,3\n")
    trace = tmp_path / "w.trace"
    code, out, _ = run(capsys, str(workload), "--realtime", "--trace", str(trace), "--policy", "slots")
    assert code == 0
    assert "3 requests of w.csv, measured on embedded" in out
    recorded = Trace.open(trace)
    assert recorded.meta["source"] == "measured"
    assert recorded.requests["output_tokens"].tolist() == [4, 6, 3]
    with pytest.raises(SystemExit) as ended:
        main(["rerun", str(trace)])
    assert ended.value.code == 0
    assert "make the same plans" in capsys.readouterr().out


def test_a_probe_runs_beside_a_measured_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload, path = tmp_path / "w.csv", tmp_path / "run.trace"
    workload.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,4\n0.01,30,6\n")
    code, out, said = run(capsys, str(workload), "--probe", "--trace", str(path))
    assert code == 0, said
    assert "2 requests of w.csv, measured on embedded" in out
    assert len(probes_of(Trace.open(path))[1]) >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "embeded"], "did you mean embedded"),
        (["--policy", "fcfs"], "policy"),
        (["--dtype", "int4"], "unknown dtype 'int4'"),
        (["--device", "cuda:9"], "device is 'cuda:9'"),
        (["--temperature", "-1"], "temperature is -1"),
        (["default", "--prompt", "x"], "leave the workload out"),
        (["default", "--realtime", "--concurrency", "2"], "contradict"),
        (["--probe"], "--probe is for a workload"),
        (["default", "--probe", "--requests", "1", "--async-scheduling"], "with async_scheduling there is none"),
        (["--kv-cache-gib", "0", "--num-blocks", "1"], "num_blocks is 1"),
        (["no-such-file.csv"], "no such file"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *QUICK, *arguments])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error
    assert len(error.splitlines()) == 1


def test_requests_that_do_not_fit_are_named_or_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,4\n0.01,3000,6\n0.02,8,3\n")
    code, _, error = run(capsys, str(workload))
    assert code == 2
    assert "request 2 of 3: its prompt of 3000 tokens" in error
    code, out, error = run(capsys, str(workload), "--skip-bad", "--json")
    assert code == 0
    assert "skipped 1 requests: could never be served" in error
    record = json.loads(out)
    assert record["requests"] == record["workload"]["requests"] == 2
    assert record["skipped"] == {"could never be served with these settings": 1}
