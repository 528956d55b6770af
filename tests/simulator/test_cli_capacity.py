from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scheduler.errors import ConfigError, InputError
from simulator.cli import capacity

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def run(*args: object) -> str:
    result = CliRunner().invoke(capacity, [str(arg) for arg in args], catch_exceptions=False, standalone_mode=False)
    return result.stdout


@pytest.fixture
def minute(tmp_path: Path) -> Path:
    """60 requests, one a second, 10 outputs each."""
    file = tmp_path / "minute.csv"
    file.write_text(HEADER + "".join(f"{second},8,10\n" for second in range(60)))
    return file


ONE_SLOT = ("--cost", "linear:step_s=0.1", "--max-num-seqs", 1, "--num-blocks", 1000)


def test_json_holds_the_answer_and_all_trials(minute: Path, tmp_path: Path) -> None:
    out = tmp_path / "answer.json"
    found = json.loads(run(minute, "--slo", "e2e_p99=1.5", "--seeds", 2, *ONE_SLOT, "--json", "--out", out))
    assert found["rate_per_s"] == pytest.approx(1.0, rel=0.02)
    assert found["seeds"] == [0, 1]
    assert len(found["runs"]) == 2
    assert {trial["met"] for trial in found["trials"]} == {True, False}
    assert json.loads(out.read_text()) == found


def test_the_answer_is_a_sentence_above_its_trials(minute: Path) -> None:
    text = run(minute, "--slo", "e2e_p99=1500ms", "--seeds", 1, *ONE_SLOT, "--price", 2)
    assert text.startswith("one replica can take 1 requests/s; at 1.0")
    assert "per million output tokens" in text
    assert "e2e_p99 <= 1.5" in text


def test_a_rate_asks_for_replicas(minute: Path) -> None:
    args = ("--slo", "e2e_p99=1.05", "--rate", 3, "--router", "round-robin", "--seeds", 1, "--price", 2)
    text = run(minute, *args, *ONE_SLOT)
    assert "3 requests/s need 3 replicas behind round-robin, 3 GPUs" in text
    assert "GPUs: 3, at 2 an hour" in text


def test_a_yaml_file_gives_defaults_and_flags_win(minute: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("slo: e2e_p99=1.5\nseeds: 1\ncost: linear:step_s=0.1\nmax_num_seqs: 1\nnum_blocks: 1000\n")
    assert json.loads(run(minute, "--config", file, "--json"))["slo"] == {"e2e_p99": 1.5}
    assert json.loads(run(minute, "--config", file, "--slo", "e2e_p99=2", "--json"))["slo"] == {"e2e_p99": 2.0}


def test_bad_rows_are_left_out_and_counted_when_asked(minute: Path) -> None:
    minute.write_text(minute.read_text() + "60,0,10\n")
    args = (minute, "--slo", "e2e_p99=1.5", "--seeds", 1, *ONE_SLOT, "--json")
    with pytest.raises(InputError, match="line 62"):
        run(*args)
    result = CliRunner().invoke(capacity, [str(arg) for arg in (*args, "--skip-bad")], standalone_mode=False)
    assert "skipped 1 rows" in result.stderr
    assert json.loads(result.stdout)["workload"]["requests"] == 60


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--slo", "ttfd_p99=1"), "did you mean 'ttft_p99'"),
        (("--slo", "ttft_p99=1", "--router", "rund-robin"), "did you mean 'round-robin'"),
        (("--slo", "tpot_p99=1", "--policy", "static"), "has no tpot"),
    ],
)
def test_mistakes_are_sentences(args: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run("default", *args)
