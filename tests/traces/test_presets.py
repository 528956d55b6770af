from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from scheduler.errors import ConfigError, InputError
from traces.formats import read_workload
from traces.lengths import Quantiles
from traces.presets import LENGTH_KNOTS, PRESETS, default_workload, resolve_workload

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_presets", ROOT / "benchmarks" / "fit_presets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["conv", "code"])
def test_the_parameters_are_those_the_script_finds(data_dir: Path, fit: ModuleType, name: str) -> None:
    measured = read_workload(data_dir / "workloads" / f"AzureLLMInferenceTrace_{name}.csv")
    found = fit.parameters(measured)
    generator = PRESETS[f"azure-{name}"].generator
    assert isinstance(generator.prompt, Quantiles)
    assert isinstance(generator.output, Quantiles)
    assert found["prompt"] == list(generator.prompt.tokens)
    assert found["output"] == list(generator.output.tokens)
    assert found["gaps"] == list(generator.arrivals.seconds)  # type: ignore[attr-defined] # GapQuantiles
    assert max(found["rank_correlation"], 0) == generator.same_quantile


@pytest.mark.parametrize("name", ["conv", "code"])
def test_the_fit_is_as_good_as_documented(data_dir: Path, fit: ModuleType, name: str) -> None:
    measured = read_workload(data_dir / "workloads" / f"AzureLLMInferenceTrace_{name}.csv")
    errors = fit.errors(measured, PRESETS[f"azure-{name}"].generator.workload(200_000, seed=0))
    for column in ("prompt", "output", "gap"):
        assert errors[column]["cdf_distance"] < 0.035
        assert abs(errors[column]["mean"]) < 0.06
        assert errors[column]["quantiles_mean"] < 0.045
    assert abs(errors["rate"]) < 0.02


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_is_seeded_and_named(name: str) -> None:
    made = resolve_workload(name)
    assert (len(made), made.name) == (PRESETS[name].requests, name)
    assert made.digest() == resolve_workload(name, seed=0).digest() != resolve_workload(name, seed=1).digest()


def test_the_default_workload_is_the_one_recorded() -> None:
    made = default_workload()
    assert made.digest() == RECORDED_DIGEST
    assert (made.prompt_tokens + made.output_tokens).max() < 4096
    assert len(default_workload(requests=20)) == 20


RECORDED_DIGEST = "27742f90c1ec8ae04b098030f778a38d7c0c153991015356f92505d3a800dc59"


def test_the_quantiles_of_a_preset_meet_its_knots() -> None:
    prompt = PRESETS["azure-conv"].generator.prompt
    assert isinstance(prompt, Quantiles)
    assert prompt.at(np.array(LENGTH_KNOTS)).tolist() == list(prompt.tokens)


def test_rate_and_number_can_be_chosen_for_presets_and_files(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n1,5,1\n2,9,2\n4,5,3\n")
    assert resolve_workload("azure-conv", requests=50, rate=7).rate_per_s == pytest.approx(7)
    assert resolve_workload(file, rate=4).rate_per_s == pytest.approx(4)
    assert resolve_workload(str(file), requests=2).arrival_s.tolist() == [1, 2]
    assert resolve_workload(file, span_s=(2, 9)).arrival_s.tolist() == [0, 2]
    assert resolve_workload("default", span_s=(5, 9)).arrival_s.max() < 4
    with pytest.raises(ConfigError, match="has no rate to change"):
        resolve_workload(file, requests=1, rate=4)
    with pytest.raises(ConfigError, match="rate is -1"):
        resolve_workload("default", rate=-1)


def test_an_unknown_name_suggests_the_nearest_preset() -> None:
    with pytest.raises(InputError, match=r"azur-conv: there is no such file, nor such a preset \(did you mean 'azure-"):
        resolve_workload("azur-conv")
    with pytest.raises(InputError, match="presets: azure-conv, azure-code, default"):
        resolve_workload("gone.csv")


def test_a_preset_wins_over_a_file_of_its_name_unless_it_is_given_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("default").write_text("arrival_s,prompt_tokens,output_tokens\n1,5,1\n")
    assert len(resolve_workload("default")) == 300
    assert len(resolve_workload("./default")) == 1
