"""Tests of the hardware sheets."""

from __future__ import annotations

import json

import pytest

from scheduler.errors import ConfigError
from simulator.hardware import GIB, HARDWARE, get_hardware, hardware_names

# Advertised memory in GB (10^9 or 2^30: vendors differ); programs see a little less.
ADVERTISED_GB = {
    "a100-40gb": 40, "a100-80gb": 80, "h100": 80, "h200": 141, "b200": 192, "l4": 24, "l40s": 48, "rtx-4090": 24,
    "rtx-pro-6000": 96, "mi300x": 192, "rtx-3090": 24, "rtx-5090": 32, "rtx-a6000": 48, "rtx-6000-ada": 48, "a10": 24,
}  # fmt: skip


def test_all_devices_have_a_sheet() -> None:
    assert set(hardware_names()) == {*ADVERTISED_GB, "cpu"}


@pytest.mark.parametrize("name", sorted(ADVERTISED_GB))
def test_memory_is_what_programs_see_of_what_is_advertised(name: str) -> None:
    assert 0.9 * ADVERTISED_GB[name] * GIB < get_hardware(name).memory_bytes <= ADVERTISED_GB[name] * GIB


@pytest.mark.parametrize("sheet", HARDWARE.values(), ids=str)
def test_figures_have_sources_and_are_json(sheet: object) -> None:
    told = json.loads(json.dumps(sheet.as_dict()))  # type: ignore[attr-defined]  # parametrized
    assert all(len(told[key]) > 10 for key in ("source", "memory_source"))
    assert told["efficiency"]["source"]
    assert all(told[key] > 0 for key in ("bf16_flops", "memory_bytes", "memory_bandwidth", "link_bandwidth", "sms"))


@pytest.mark.parametrize("name", sorted(ADVERTISED_GB))
def test_ridge_of_an_accelerator_lies_where_its_kind_has_it(name: str) -> None:
    """FLOPs a byte at which arithmetic and memory take as long: 100 to 500 on all of today's accelerators."""
    sheet = get_hardware(name)
    least = 70 if name == "rtx-3090" else 100  # consumer Ampere has half of the rate where it accumulates in fp32
    assert least < sheet.bf16_flops / sheet.memory_bandwidth < 500
    assert sheet.fp8_flops is None or sheet.fp8_flops == pytest.approx(2 * sheet.bf16_flops, rel=0.02)


@pytest.mark.parametrize(
    ("given", "found"), [("A100-80GB", "a100-80gb"), ("rtx_4090", "rtx-4090"), ("a100", "a100-80gb"), ("H100 ", "h100")]
)
def test_names_are_forgiving(given: str, found: str) -> None:
    assert get_hardware(given).name == found


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown hardware 'a100-8gb' \(did you mean 'a100-80gb'\?\)"):
        get_hardware("a100-8gb")


def test_figures_can_be_changed() -> None:
    assert get_hardware("h100", price_per_hour=2.5).price_per_hour == 2.5
    with pytest.raises(ConfigError, match="did you mean 'memory_bytes'"):
        get_hardware("h100", memory_byte=1)
    with pytest.raises(ConfigError, match="must be > 0"):
        get_hardware("h100", memory_bandwidth=0)
