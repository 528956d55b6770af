from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dashboard.panels.cost import priced
from dashboard.panels.pricing import pricing_of, sheet_named_in
from simulator.calibrate import calibrate, write_cost
from simulator.hardware import HARDWARE
from traces.samples import sample_path

from .runs import random_run, sample, scene, simulated_run


@pytest.mark.parametrize(
    ("device", "sheet"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("x86_64 CPU, 2 threads", "cpu"),
        ("NVIDIA GeForce GTX 970", None),
        ("", None),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives(device: str, sheet: str | None) -> None:
    found = sheet_named_in(device)
    assert (None if found is None else found.name) == (sheet if sheet in HARDWARE else None)


def test_a_run_is_priced_by_its_own_cost_model() -> None:
    run = sample("chunked-simulated")
    model = pricing_of(run).model
    assert model is not None
    assert model.describe() == run.meta["cost_model"]


def test_a_run_of_a_fitted_cost_is_priced_without_its_file(tmp_path: Path) -> None:
    write_cost(calibrate([sample_path("chunked")]), tmp_path / "cost.json")
    run = simulated_run(tmp_path, requests=20, cost=f"fitted:path={tmp_path / 'cost.json'}", num_blocks=200)
    (tmp_path / "cost.json").unlink()
    model = pricing_of(run).model
    assert model is not None
    assert model.describe() == run.meta["cost_model"]
    (found,) = priced(scene(run))
    np.testing.assert_allclose(sum(found.parts.values()), run.column("steps", "device_s"), rtol=1e-9)


def test_a_measured_run_is_priced_from_its_own_architecture() -> None:
    model = pricing_of(sample("chunked")).model
    assert model is not None
    assert model.model is not None
    shape = sample("chunked").meta["architecture"]
    assert (model.model.hidden, model.model.layers) == (shape["hidden_size"], shape["num_layers"])
    assert model.options()["weight_dtype"] == "fp32"


def test_no_module_is_imported_because_a_meta_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", lambda *_: pytest.fail("imported"))
    told = {"name": "antigravity:Model", "options": {}, "model": None, "hardware": None, "tensor_parallel": 1}
    assert pricing_of(random_run(2, meta={"cost_model": told})).model is None


def test_pricing_is_kept_so_that_the_next_figure_is_quick() -> None:
    assert pricing_of(sample("chunked")) is pricing_of(sample("chunked"))
