"""Tests of the cost model contract and of finding cost models by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import ConfigError
from scheduler.plan import StepShape
from simulator.costs import CostModel, StepCost, cost_model_names, make_cost_model

SHAPE = StepShape.of("ragged", [1, 1, 5], [10, 20, 0])
DOCS = Path(__file__).parents[2] / "docs" / "cost-models.md"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package that offers the documentation's cost model by entry point."""
    example = DOCS.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "their_costs.py").write_text(f"{example}\nother = 3\n")
    info = tmp_path / "their_costs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-costs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[batchscope.cost_models]\nconstant = their_costs:Constant\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_costs", raising=False)
    return "their_costs"


@pytest.mark.parametrize("name", ["constant", "their_costs:Constant"])
def test_model_of_a_user_is_found_by_entry_point_and_by_module(package: str, name: str) -> None:
    assert make_cost_model(name, step_s=0.5).step_cost(SHAPE).device_s == 0.5
    assert make_cost_model(f"{name}:step_s=0.25").step_cost(SHAPE).device_s == 0.25
    assert "constant" in cost_model_names()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("roofine", "did you mean 'roofline'"),
        ("no_such_module:Model", "No module named 'no_such_module'"),
        ("their_costs:Konstant", "did you mean 'Constant'"),
        ("their_costs:other", "not a class derived from simulator.costs"),
        ("linear:step_s", "options 'step_s': expected key=value"),
        ("linear:step_s=", "expected key=value"),
        ("linear:stepp_s=1", "did you mean 'step_s'"),
        ("linear:token_s=1", "needs step_s"),
        ("linear:step_s=-1", "step_s is -1; expected a number >= 0"),
        ("linear:step_s=abc", "step_s is 'abc'; expected a number"),
        ("linear:step_s=nan", "step_s is nan"),
    ],
)
def test_wrong_names_and_options_get_one_sentence(package: str, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
        make_cost_model(name)


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_tensor_parallel_must_be_a_whole_number(value: Any) -> None:
    with pytest.raises(ConfigError, match="tensor_parallel"):
        make_cost_model("linear", step_s=1.0, tensor_parallel=value)


def test_keyword_options_win_over_those_in_the_name() -> None:
    assert make_cost_model("linear:step_s=1,token_s=2", step_s=3).options()["step_s"] == 3.0


def test_cost_without_parts_is_device_and_host() -> None:
    assert StepCost(1.0, 2.0).breakdown() == {"device": 1.0, "host": 2.0}


@pytest.mark.parametrize("name", ["linear:step_s=0.01", "roofline"])
def test_description_is_json_and_rebuilds_the_model(name: str) -> None:
    cost = make_cost_model(name, model="llama-3-8b", hardware="a100-80gb", tensor_parallel=2)
    told = json.loads(json.dumps(cost.describe()))
    again = make_cost_model(
        told["name"],
        model=told["model"]["name"],
        hardware=told["hardware"]["name"],
        tensor_parallel=told["tensor_parallel"],
        **told["options"],
    )
    assert again.step_cost(SHAPE).device_s == cost.step_cost(SHAPE).device_s
    assert told["hardware"]["efficiency"]["source"]


def test_an_import_that_fails_inside_a_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_costs.py").write_text("import a_module_that_is_nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot be loaded: No module named 'a_module_that_is_nowhere"):
        make_cost_model("broken_costs:Model")


def test_model_that_names_no_parts_says_so() -> None:
    class Bare(CostModel):
        name = "bare"

        def step_cost(self, shape: StepShape) -> StepCost:
            return StepCost(1.0, 0.0)

        def options(self) -> dict[str, Any]:
            return {}

    with pytest.raises(NotImplementedError, match="bare"):
        Bare().breakdown(SHAPE)
    assert Bare().extrapolation() is None
