from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scheduler.errors import InputError
from traces.formats import read_workload

WINDOWS = "0,0,0,,0,0\n600,2.0,1.5,Gamma,0.44,0.5\n1200,0.5,2,Weibull,0.6,0.1\n"
DATASET = {
    "0": {"input_tokens": "{}", "output_tokens": "{}"},
    "600": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{0: 1.0}"},
    "1200": {"input_tokens": "{30: 1.0}", "output_tokens": "{7: 1.0}"},
}


def folder(tmp_path: Path, windows: str = WINDOWS, dataset: object = DATASET, client: int = 4) -> Path:
    (tmp_path / f"chunk-{client}-trace.csv").write_text(windows)
    (tmp_path / f"chunk-{client}-dataset.json").write_text(json.dumps(dataset))
    return tmp_path


def test_windows_give_their_rate_and_the_lengths_of_their_time(tmp_path: Path) -> None:
    workload = read_workload(folder(tmp_path))
    early = workload.arrival_s < 1200
    assert (early.sum(), (~early).sum()) == (1200, 300)
    assert workload.arrival_s.min() >= 600
    assert workload.arrival_s.max() < 1800
    assert set(workload.prompt_tokens[early].tolist()) == {10, 20}
    assert 450 < (workload.prompt_tokens[early] == 10).sum() < 750
    assert set(workload.prompt_tokens[~early].tolist()) == {30}
    assert set(workload.output_tokens.tolist()) == {1, 7}


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    folder(tmp_path)
    digests = [read_workload(tmp_path, seed=seed).digest() for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


def test_gaps_have_the_recorded_shape(tmp_path: Path) -> None:
    workload = read_workload(folder(tmp_path, "0,50,1.5,Gamma,0.4444444,1\n", {"0": DATASET["1200"]}))
    assert workload.stats()["interarrival_cv"] == pytest.approx(1.5, rel=0.05)


def test_a_span_cuts_windows_and_starts_at_zero(tmp_path: Path) -> None:
    workload = read_workload(folder(tmp_path), span_s=(1100, 1300))
    assert len(workload) == 2 * 100 + 0.5 * 100
    assert workload.arrival_s.min() < 10
    assert workload.arrival_s.max() < 200


def test_clients_are_merged_in_order_of_time(tmp_path: Path) -> None:
    folder(tmp_path)
    workload = read_workload(folder(tmp_path, client=11))
    assert len(workload) == 3000
    assert len(set(workload.arrival_s.tolist())) > 2900


@pytest.mark.parametrize(
    ("windows", "sentence"),
    [
        ("0,1,1\n", "chunk-4-trace.csv, line 1: has 3 fields; expected ts,rate,cv,pattern,arg1,arg2"),
        ("0,x,1,Gamma,1,1\n", "line 1: could not convert"),
        ("0,-1,1,Gamma,1,1\n", "line 1: .*expected numbers >= 0"),
        ("0,1,1,Pareto,1,1\n", "line 1: pattern is 'Pareto' with arg1 1; expected Gamma or Weibull"),
        ("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "line 2: ts is 0 after 600; expected rising times"),
        ("0,0,0,,0,0\n", r"describes no requests; choose a span of seconds \(--start, --end\)"),
        ("0,1e9,1,Gamma,1,1\n", "describes 6e.11 requests, more than 20,000,000"),
    ],
)
def test_bad_windows_are_one_sentence(tmp_path: Path, windows: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_workload(folder(tmp_path, windows))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"input_tokens": "__import__('os').getcwd()", "output_tokens": "{}"},
            "input_tokens of window 0 cannot be read",
        ),
        ({"input_tokens": "{1: 'a'}", "output_tokens": "{1: 1}"}, "cannot be read"),
        ({"output_tokens": "{1: 1}"}, "input_tokens of window 0 cannot be read"),
        ({"input_tokens": "{1: -1.0}", "output_tokens": "{1: 1}"}, "holds negative or no probabilities"),
        ({"input_tokens": "{}", "output_tokens": "{}"}, "holds no distribution"),
    ],
)
def test_bad_distributions_are_one_sentence_and_never_run(
    tmp_path: Path, fields: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        read_workload(folder(tmp_path, dataset={"0": fields}))


def test_a_client_without_its_dataset_is_named(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "chunk-4-dataset.json").unlink()
    with pytest.raises(InputError, match=r"chunk-4-dataset\.json: cannot be read: No such file"):
        read_workload(tmp_path)


def test_the_public_folder_meets_its_recorded_rates(data_dir: Path) -> None:
    path = data_dir / "workloads" / "servegen_m-small"
    windows = np.genfromtxt(path / "chunk-4-trace.csv", delimiter=",", usecols=(0, 1))
    workload = read_workload(path)
    counts, _ = np.histogram(workload.arrival_s, bins=np.append(windows[:, 0], windows[-1, 0] + 600))
    assert np.array_equal(counts, np.round(windows[:, 1] * 600))
