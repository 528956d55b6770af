from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from scheduler.errors import ConfigError, InputError, UserError
from traces.cli_workload import workload
from traces.formats import read_workload

ROOT = Path(__file__).resolve().parent.parent.parent
OWN = "arrival_s,prompt_tokens,output_tokens\n"


def run(*args: object) -> str:
    result = CliRunner().invoke(workload, [str(a) for a in args], catch_exceptions=False, standalone_mode=False)
    return result.stdout


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.csv"
    file.write_text(OWN + "0,5,1\n1,0,2\n4,5,3\n")
    return file


def test_info_prints_one_json_object_with_what_was_left_out(small: Path, tmp_path: Path) -> None:
    stats = json.loads(run("info", small, "--skip-bad", "--json", "--out", tmp_path / "o.json"))
    assert (stats["requests"], stats["skipped"]) == (2, {"prompt_tokens below 1": 1})
    assert json.loads((tmp_path / "o.json").read_text()) == stats


def test_info_is_a_plain_table_when_piped(small: Path) -> None:
    text = run("info", small, "--skip-bad")
    assert "requests    2" in text
    assert "left out: 1 row, prompt_tokens below 1" in text
    assert "\x1b" not in text


def test_info_takes_presets_seeds_and_numbers() -> None:
    stats = json.loads(run("info", "azure-code", "-n", 30, "--seed", 4, "--rate", 2, "--json"))
    assert (stats["requests"], stats["name"]) == (30, "azure-code")
    assert stats["rate_per_s"] == pytest.approx(2)


def test_convert_keeps_the_digest_and_replaces_the_target_whole(tmp_path: Path) -> None:
    source = tmp_path / "m.jsonl"
    source.write_text('{"timestamp": 500, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n')
    for name in ("a.csv", "b.jsonl"):
        (tmp_path / name).write_text("old")
        stats = json.loads(run("convert", source, tmp_path / name, "--json"))
        assert read_workload(tmp_path / name).digest() == read_workload(source).digest() == stats["digest"]
        assert stats["written"] == str(tmp_path / name)


def test_a_failing_conversion_leaves_the_target_as_it_was(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.csv"
    target.write_text("old")
    with pytest.raises(InputError, match="line 3: prompt_tokens is '0'"):
        run("convert", small, target)
    with pytest.raises(ConfigError, match=r"t\.txt ends in \.txt"):
        run("convert", small, tmp_path / "t.txt")
    with pytest.raises(ConfigError, match="--out and TARGET are both"):
        run("convert", small, target, "--skip-bad", "--out", target)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.csv", "t.csv"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(small: Path, tmp_path: Path) -> None:
    (tmp_path / "full.csv").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"no space left on device while writing .*full\.csv"):
        run("convert", small, tmp_path / "full.csv", "--skip-bad")


def test_sort_and_a_span_reach_the_reader(tmp_path: Path) -> None:
    source = tmp_path / "s.csv"
    source.write_text(OWN + "9,5,1\n1,6,2\n4,7,3\n")
    run("convert", source, tmp_path / "t.csv", "--sort", "--start", 2, "--end", 9)
    assert (tmp_path / "t.csv").read_text() == OWN + "2.0,7,3\n"


def test_sample_draws_the_size_in_order(tmp_path: Path) -> None:
    run("sample", "azure-conv", tmp_path / "s.jsonl", "--size", 25, "--seed", 3)
    assert len(read_workload(tmp_path / "s.jsonl")) == 25


def test_generate_makes_the_same_bytes_again(tmp_path: Path) -> None:
    options = [
        "-n", 40, "--arrivals", "gamma:rate=2,cv=2", "--prompt", "uniform:low=5,high=50", "--output", "zipf:a=1,max=30",
        "--prefixes", "groups=2,length=32", "--sessions", "turns=3,think=1", "--max-tokens", 20, "--seed", 9,
    ]  # fmt: skip
    run("generate", tmp_path / "a.jsonl", *options)
    run("generate", tmp_path / "b.jsonl", *options)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    made = read_workload(tmp_path / "a.jsonl")
    assert (len(made), made.output_tokens.max() <= 20, made.prefix_share() is not None) == (40, True, True)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--arrivals", "poison:1", "did you mean 'poisson'"),
        ("--prompt", "constant", "prompt constant needs value"),
        ("--sessions", "turn=3", "did you mean 'turns'"),
        ("--prefixes", "groups=2", "needs length"),
        ("-n", "0", "requests is 0"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_writes_nothing(
    tmp_path: Path, option: str, value: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run("generate", tmp_path / "a.csv", option, value)
    assert not list(tmp_path.iterdir())


def test_a_yaml_file_gives_the_options_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text("arrivals: constant:rate=2\nrequests: 9\nprompt: constant:7\n")
    run("generate", tmp_path / "a.csv", "--config", tmp_path / "g.yaml", "--output", "constant:3", "-n", 2)
    assert (tmp_path / "a.csv").read_text() == OWN + "0.0,7,3\n0.5,7,3\n"


def test_the_front_door_shows_one_line_and_exit_code_2(small: Path) -> None:
    command = [sys.executable, "batchscope.py", "workload", "info", str(small)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {small}, line 3: prompt_tokens is '0'; expected a whole number >= 1")


def test_reading_a_workload_loads_no_heavy_library(small: Path) -> None:
    code = (
        "import sys; from traces.formats import read_workload; from traces.presets import default_workload\n"
        f"default_workload(); read_workload({str(small)!r}, skip_bad=True)\n"
        "print([m for m in ('pandas', 'pyarrow', 'rich', 'torch', 'simpy', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_requests_to_make_is_a_sentence_about_requests_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^requests is 0; expected a whole number >= 1$"):
        run("generate", tmp_path / "t.csv", "-n", "0")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [
    ("info", "w.csv", "--out", "w.csv"),
    ("convert", "w.csv", "w.csv"),
    ("sample", "w.csv", "w.csv", "--size", "1"),
    ("convert", "w.csv", "link.csv"),
    ("convert", "w.csv", "other.csv", "--out", "./w.csv"),
    ("generate", "w.csv", "--prompt", "empirical:file=w.csv"),
    ("generate", "new.csv", "--output", "empirical:file=w.csv,column=output", "--out", "w.csv"),
    ("info", "w.csv", "--config", "run.yaml", "--out", "run.yaml"),
])  # fmt: skip
def test_no_command_writes_over_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,2\n1,6,3\n")
    (tmp_path / "link.csv").symlink_to("w.csv")
    (tmp_path / "run.yaml").write_text("seed: 1\n")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=r"would replace .*, which this command reads; expected another name"):
        run(*command)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
