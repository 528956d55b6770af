"""Tests of the profile cost model: grid points, between them, unequal requests, and beyond the tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import ConfigError
from scheduler.plan import StepShape
from simulator.costs import CostModel, make_cost_model
from simulator.costs.attention_blocks import schedule_s
from simulator.costs.attention_fit import Card
from simulator.costs.attention_grid import AttentionGrid
from simulator.costs.attention_table import AttentionTable
from simulator.run import simulate
from tests.simulator.profiles import BEFORES, CHUNKS, CONTEXTS, DECODES, attention_us, write_profile

VLLM = "reference/vllm-0.19-rtx4090-llama-3.1-8b"
LAYERS = 32
CARD = Card(sms=128, heads=32, kv_heads=8, head_dim=128, longest=8192)


def cost_of(folder: Path, **options: object) -> CostModel:
    model, hardware = options.pop("model", "llama-3.1-8b"), options.pop("hardware", "rtx-4090")
    return make_cost_model("profile", dir=str(folder), model=model, hardware=hardware, **options)  # type: ignore[arg-type]  # wrong ones too


def grid_of(folder: Path) -> AttentionGrid:
    from simulator.costs.operator_tables import read_tables

    grid = read_tables(folder).attention
    assert grid is not None
    return grid


def decodes(*contexts: int) -> StepShape:
    """Decodes that read so many positions each, their own included."""
    return StepShape.of("ragged", [1] * len(contexts), [context - 1 for context in contexts])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_profile(tmp_path_factory.mktemp("profile") / "p")


@pytest.fixture(scope="module")
def table(tables: Path) -> AttentionTable:
    return AttentionTable(grid_of(tables), CARD)


def test_a_step_sums_its_operators_in_seconds(tables: Path) -> None:
    cost = cost_of(tables)
    price = cost.step_cost(StepShape.of("ragged", [1] * 16, [512] * 16))
    # 7 operators a layer of which the norm twice, at 16 rows; embedding and final norm once; 16 sequences
    dense = (LAYERS * 8 + 2) * 11.6e-6
    attention = LAYERS * attention_us(0, 0, 16, 512) * 1e-6
    assert price.device_s == pytest.approx(dense + 2 * 28e-6 + attention)
    assert price.host_s == pytest.approx(16 * 13.5e-6)
    parts = price.breakdown()
    assert sum(parts.values()) == pytest.approx(price.device_s + price.host_s)
    assert parts["gemm"] == pytest.approx(LAYERS * 4 * 11.6e-6)
    assert parts["attention"] == pytest.approx(attention)


def test_a_real_dense_table_is_read_as_it_stands(data_dir: Path) -> None:
    cost = cost_of(data_dir / VLLM)
    with open(data_dir / VLLM / "profile_dense.csv", newline="") as file:
        times = {(row["layer"], int(row["tokens"])): float(row["time_us"]) for row in csv.DictReader(file)}
    for tokens in (1, 48, 512, 2048):
        products = sum(times[name, tokens] for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
        parts = cost.breakdown(StepShape.of("ragged", [tokens], [0]))
        assert parts["gemm"] == pytest.approx(LAYERS * products * 1e-6)


def test_grid_points_are_exact(table: AttentionTable) -> None:
    for chunk in CHUNKS:
        for before in BEFORES:
            alone = table.seconds(StepShape.of("ragged", [chunk], [before]))
            assert alone == pytest.approx(attention_us(chunk, before, 0, 0) * 1e-6)
            for count in DECODES:
                for context in CONTEXTS:
                    shape = StepShape.of("ragged", [1] * count + [chunk], [context] * count + [before])
                    assert table.seconds(shape) == pytest.approx(attention_us(chunk, before, count, context) * 1e-6)
                    assert not table.beyond


def test_grid_points_of_a_real_card_are_exact(data_dir: Path) -> None:
    grid = grid_of(data_dir / VLLM)
    table = AttentionTable(grid, CARD)
    for i, count in enumerate(grid.decodes.astype(int)):
        for j, context in enumerate(grid.context.astype(int)):
            assert table.seconds(decodes(*[context + 1] * count)) == pytest.approx(grid.decode_s[i, j])
    chunks, befores = grid.chunk.astype(int), grid.before.astype(int)
    counts, contexts = grid.decodes.astype(int), grid.context.astype(int)
    rng = np.random.default_rng(0)
    for i, j, k, m in rng.integers((0, 0, 0, 0), grid.mixed_s.shape, (300, 4)):
        if not grid.mixed_filled[i, j, k, m]:
            shape = StepShape.of("ragged", [1] * counts[k] + [chunks[i]], [contexts[m]] * counts[k] + [befores[j]])
            assert table.seconds(shape) == pytest.approx(grid.mixed_s[i, j, k, m])


@given(st.integers(1, 64), st.integers(129, 2048))
def test_even_decodes_lie_between_the_grid_points_around_them(table: AttentionTable, count: int, context: int) -> None:
    seconds = table.even_decode_s(count, context)
    low = (max(n for n in DECODES if n <= count), max(x for x in CONTEXTS if x <= context))
    high = (min(n for n in DECODES if n >= count), min(x for x in CONTEXTS if x >= context))
    bounds = [attention_us(0, 0, *corner) * 1e-6 for corner in (low, high)]
    assert bounds[0] * (1 - 1e-9) <= seconds <= bounds[1] * (1 + 1e-9)


@given(st.integers(1, 64), st.integers(1, 2000), st.integers(1, 100))
def test_even_decodes_never_get_cheaper_with_more_context(table: AttentionTable, n: int, x: int, more: int) -> None:
    table.reset()
    short = table.seconds(decodes(*[x] * n))
    table.reset()
    assert table.seconds(decodes(*[x + more] * n)) >= short * (1 - 1e-12)


@settings(deadline=None)
@given(st.lists(st.integers(1, 2048), min_size=1, max_size=64))
def test_unequal_decodes_cost_at_least_what_even_ones_of_as_many_tiles_do(
    table: AttentionTable, contexts: list[int]
) -> None:
    table.reset()
    shape = decodes(*contexts)
    history = table.history(np.array(contexts), len(contexts), sum(contexts))
    assert table.seconds(shape) >= table.even_decode_s(len(contexts), history)


def test_order_of_calls_alone_decides_prices(tables: Path) -> None:
    cost = cost_of(tables)
    rng = np.random.default_rng(1)
    shapes = [decodes(*rng.integers(10, 2000, rng.integers(2, 60)).tolist()) for _ in range(50)]
    first = [cost.step_cost(shape).device_s for shape in shapes]
    cost.reset()
    assert [cost.step_cost(shape).device_s for shape in shapes] == first


def fluid_us(chunk: int, before: int, count: int, context: int) -> float:
    """A card that is nothing but 188 SMs: blocks of decodes share 3,000 keys a us, none goes faster than 30."""
    if not chunk:
        return 1e-3 + schedule_s([float(context + 1)] * (8 * count), 188, 3000.0, 30.0)
    ends = [before + min(chunk, row) for row in range(64, chunk + 64, 64)]
    blocks = [float(context + 1)] * count + [float(end) for end in ends]
    return 1e-3 + schedule_s(blocks * 32, 188, 1e9, 30.0)


def test_a_card_of_another_size_is_priced_from_its_even_batches(tmp_path: Path) -> None:
    grid = grid_of(write_profile(tmp_path / "p", attention=fluid_us))
    table = AttentionTable(grid, Card(sms=188, heads=32, kv_heads=8, head_dim=128, longest=8192))
    rng = np.random.default_rng(2)
    errors: dict[str, list[float]] = {"mean": [], "unequal": []}
    for _ in range(20):
        count = int(rng.integers(48, 65))
        contexts = (100 + rng.gamma(2.0, 350.0, count)).astype(int)
        true_us = schedule_s([float(x) for x in contexts] * 8, 188, 3000.0, 30.0)
        table.reset()
        errors["unequal"].append(table.seconds(decodes(*contexts.tolist())) * 1e6 / true_us - 1)
        errors["mean"].append(table.even_decode_s(count, contexts.mean() - 1) * 1e6 / true_us - 1)
    assert np.mean(errors["mean"]) < -0.1  # the plain reading misses the wait for the longest
    assert abs(np.mean(errors["unequal"])) < 0.03


def test_several_prefills_cost_less_than_one_of_their_size(table: AttentionTable) -> None:
    one = table.seconds(StepShape.of("ragged", [256], [0]))
    several = table.seconds(StepShape.of("ragged", [64] * 4, [0] * 4))
    assert several < one
    assert not table.beyond


@pytest.mark.parametrize(
    "shape",
    [
        StepShape.of("ragged", [257], [0]),  # more rows
        StepShape.of("ragged", [1] * 65, [10] * 65),  # more decodes
        StepShape.of("ragged", [1], [4096]),  # more history
        StepShape.of("ragged", [64], [4096]),
        StepShape.of("ragged", [1] * 4 + [16], [4096] * 4 + [0]),
    ],
)
def test_beyond_the_tables_a_step_is_counted_once_and_costs_more(tables: Path, shape: StepShape) -> None:
    cost = cost_of(tables)
    inside = cost.step_cost(StepShape.of("ragged", [1] * 4, [128] * 4)).device_s
    assert cost.extrapolation() is None
    whole = cost.step_cost(shape)
    price = whole.device_s
    assert cost.padding_s(whole, shape, "ragged") < 1e-12  # the same step priced again, and not counted
    extrapolation = cost.extrapolation()
    assert extrapolation is not None
    assert extrapolation["steps"] == 1
    assert "256 rows, 64 decodes, 2,048 positions" in extrapolation["reason"]
    assert price > inside
    cost.reset()
    assert cost.extrapolation() is None


def test_mixtures_that_were_not_measured_are_counted(tmp_path: Path) -> None:
    cost = cost_of(write_profile(tmp_path / "p", mixed_most=16))
    cost.step_cost(StepShape.of("ragged", [1] * 16 + [64], [128] * 16 + [0]))
    assert cost.extrapolation() is None
    cost.step_cost(StepShape.of("ragged", [1] * 20 + [64], [128] * 20 + [0]))
    assert cost.extrapolated_steps == 1


def test_a_trace_says_that_steps_were_extrapolated(tables: Path) -> None:
    trace = simulate(requests=20, cost=f"profile:dir={tables}", model="llama-3.1-8b", hardware="rtx-4090")
    assert trace.meta["extrapolation"]["steps"] > 0
    assert trace.meta["cost_model"]["options"]["dir"] == str(tables)


def test_shapes_of_sums_alone_are_priced_at_their_means(table: AttentionTable) -> None:
    sums = StepShape("ragged", 16, 16, 16, 16, 16 * 513)
    assert table.seconds(sums) == pytest.approx(attention_us(0, 0, 16, 512) * 1e-6)
    mixed = StepShape("ragged", 80, 17, 17, 16, 16 * 513, 64, 64 + 128, 64 * 128 + 64 * 65 // 2)
    assert table.seconds(mixed) == pytest.approx(attention_us(64, 128, 16, 512) * 1e-6)


def test_without_blocks_a_step_costs_what_its_mean_does(tables: Path) -> None:
    cost = cost_of(tables, uneven=False)
    uneven = cost.step_cost(decodes(*[100] * 63, 2049)).breakdown()["attention"]
    even = cost.step_cost(StepShape("ragged", 64, 64, 64, 64, 63 * 100 + 2049)).breakdown()["attention"]
    assert uneven == even


def test_vidurs_products_are_joined_by_the_rooflines_attention(data_dir: Path) -> None:
    path = data_dir / "profiles" / "vidur_a100_llama-3-8b_mlp.csv"
    cost = cost_of(path, model="llama-3-8b", hardware="a100-80gb")
    roofline = make_cost_model("roofline", model="llama-3-8b", hardware="a100-80gb")
    shape = decodes(*[1000] * 64)
    ours, theirs = cost.step_cost(shape).breakdown(), roofline.step_cost(shape).breakdown()
    assert ours["attention"] == theirs["attention"]
    assert ours["gemm"] == pytest.approx(theirs["gemm"], rel=0.25)  # worst error of the roofline on that table
    extrapolation = cost.extrapolation()
    assert extrapolation is not None
    assert "has no times of attention" in extrapolation["reason"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "llama-3-70b"}, "is a profile of llama-3.1-8b; the model is llama-3-70b"),
        ({"hardware": "a100-80gb"}, "is a profile of rtx-4090; the hardware is a100-80gb"),
        ({"model": None}, "needs a model"),
        ({"uneven": "yes"}, "uneven is 'yes'"),
        ({"host_step_s": -1}, "host_step_s is -1"),
    ],
)
def test_wrong_settings_get_one_sentence(tables: Path, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        cost_of(tables, **options)


def test_the_profiles_own_card_serves_where_none_is_named(tables: Path) -> None:
    hardware = cost_of(tables, hardware=None).hardware
    assert hardware is not None
    assert hardware.name == "rtx-4090"
