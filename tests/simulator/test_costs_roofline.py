"""Tests of the roofline's laws: closed forms for an ideal device, and what must hold for every step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError
from scheduler.plan import StepShape
from simulator.costs import make_cost_model
from simulator.costs.roofline import RooflineCost
from simulator.costs.roofline_attention import waves, windowed_sums
from simulator.costs.roofline_dense import (
    RING_ALLREDUCE_EFFICIENCY,
    RING_ALLREDUCE_S,
    expected_experts,
    gemm_seconds,
    tiles,
    vector_seconds,
)
from simulator.hardware import HARDWARE, Efficiency, HardwareSheet, get_hardware
from simulator.models import MODELS, get_model

IDEAL = Efficiency(
    kernel_s=0.0, bandwidth=1.0, compute=1.0, tile_rows=1, tile_cols=1, wave=0.0, tile_overhead=0.0, blend=200.0,
    vector_s=0.0, vector_bandwidth=1.0, decode_s=0.0, decode_block_s=0.0, kv_bandwidth=1.0, attention_compute=1.0,
    query_tile=1, key_tile=1, tile_keys=0.0, tail=0.0, sampler_s=0.0, sampler_passes=0.0,
)  # fmt: skip
"""A device that reaches its peaks: the plain roofline."""

requests = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 5000)), min_size=1, max_size=20)


def ideal(name: str = "a100-80gb") -> HardwareSheet:
    return replace(get_hardware(name), efficiency=IDEAL)


def roofline(model: str = "llama-3-8b", hardware: str | HardwareSheet = "a100-80gb", **options: object) -> RooflineCost:
    cost = make_cost_model("roofline", model=model, hardware=hardware, **options)  # type: ignore[arg-type]  # by keyword
    assert isinstance(cost, RooflineCost)
    return cost


def shape_of(rows: list[tuple[int, int]]) -> StepShape:
    return StepShape.of("ragged", [n for n, _ in rows], [c for _, c in rows])


def device_s(cost: RooflineCost, rows: list[tuple[int, int]]) -> float:
    return cost.step_cost(shape_of(rows)).device_s


@pytest.mark.parametrize("rows", [1, 64, 200, 4096])
def test_ideal_products_take_the_slower_of_flops_and_bytes(rows: int) -> None:
    model, hardware = get_model("llama-3-8b"), ideal()
    sizes = [(4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)]
    expected = 32 * sum(
        max(2 * rows * k * n / hardware.bf16_flops, 2 * (k * n + rows * (k + n)) / hardware.memory_bandwidth)
        for k, n in sizes
    )
    assert roofline(hardware=hardware).dense_parts(rows)["gemm"] == pytest.approx(expected, rel=0.005)
    assert sum(k * n for k, n in sizes) == model.layer_parameters


def test_ideal_decode_attention_reads_each_kv_byte_once() -> None:
    hardware = ideal()
    seconds = roofline(hardware=hardware).attention_s(64, 64 * 1024, 0, 0, 0, 0)
    assert seconds == pytest.approx(64 * 1024 * 131072 / hardware.memory_bandwidth)


def test_ideal_prefill_attention_computes_each_pair_once() -> None:
    hardware, tokens = ideal(), 8192
    pairs = tokens * (tokens + 1) // 2
    seconds = roofline(hardware=hardware).attention_s(0, 0, tokens, tokens, pairs, 1)
    assert seconds == pytest.approx(32 * pairs * 4 * 32 * 128 / hardware.bf16_flops)


def test_lm_head_counts_logits_rows_only() -> None:
    cost, hardware = roofline(hardware=ideal()), ideal()
    one = StepShape("ragged", 512, 1, 1, 0, 0, 512, 512, 512 * 513 // 2)
    parts = cost.step_cost(one).breakdown()
    head_bytes = 2 * (4096 * 128256 + 4096 + 128256)
    assert parts["lm_head"] == pytest.approx(head_bytes / hardware.memory_bandwidth, rel=0.01)
    assert cost.logits_parts(0) == {"lm_head": 0.0, "sampler": 0.0}


@given(requests, st.sampled_from(["a100-80gb", "rtx-4090", "h100", "l4", "cpu"]))
def test_parts_sum_to_the_price(rows: list[tuple[int, int]], hardware: str) -> None:
    price = COSTS[hardware].step_cost(shape_of(rows))
    assert sum(price.breakdown().values()) == pytest.approx(price.device_s + price.host_s)
    assert min(price.breakdown().values()) >= 0


COSTS = {name: roofline(hardware=name) for name in HARDWARE}


@given(requests, st.integers(1, 300), st.integers(0, 3000), st.sampled_from(["a100-80gb", "rtx-4090", "h100"]))
def test_one_request_more_never_makes_a_decode_or_prefill_step_cheaper(
    rows: list[tuple[int, int]], new: int, context: int, hardware: str
) -> None:
    decodes = [(1, c + 1) for _, c in rows]
    assert device_s(COSTS[hardware], [*decodes, (1, context + 1)]) > device_s(COSTS[hardware], decodes)
    assert COSTS[hardware].dense_parts(new + 100)["gemm"] >= COSTS[hardware].dense_parts(new)["gemm"]


@given(st.integers(1, 4000), st.integers(0, 8000), st.integers(1, 2000))
def test_longer_prefix_never_makes_attention_cheaper(new: int, before: int, more: int) -> None:
    assert device_s(COSTS["a100-80gb"], [(new, before + more)]) >= device_s(COSTS["a100-80gb"], [(new, before)])


@given(requests)
def test_price_depends_on_the_shape_alone(rows: list[tuple[int, int]]) -> None:
    shape = shape_of(rows)
    used = COSTS["a100-80gb"].step_cost(shape)
    assert roofline().step_cost(shape).device_s == used.device_s
    again = COSTS["a100-80gb"].step_cost(shape_of(rows[::-1]))
    assert again.device_s == used.device_s


def test_memory_bound_floor_is_reading_the_weights() -> None:
    for name in ("a100-80gb", "h100", "rtx-4090"):
        hardware = get_hardware(name)
        weights = 2 * (get_model("llama-3-8b").num_parameters - 128256 * 4096)
        floor = weights / hardware.memory_bandwidth
        assert floor < device_s(COSTS[name], [(1, 100)]) < 1.7 * floor


@pytest.mark.parametrize(("experts", "per_token", "rows"), [(8, 2, 1), (8, 2, 7), (128, 8, 1), (128, 8, 64)])
def test_expected_experts_follow_the_closed_form(experts: int, per_token: int, rows: int) -> None:
    missed = ((experts - per_token) / experts) ** rows  # an expert is drawn by none of the rows
    assert expected_experts(experts, per_token, rows) == pytest.approx(experts * (1 - missed))
    assert expected_experts(experts, per_token, 1) == pytest.approx(per_token)
    assert expected_experts(experts, per_token, 100_000) == pytest.approx(experts)
    assert expected_experts(0, 0, rows) == 1.0


def test_mixture_reads_the_experts_its_tokens_reach() -> None:
    """Mixtral reads 2 of 8 experts for one token and nearly all for 64."""
    hardware, model = ideal(), get_model("mixtral-8x7b")
    cost = roofline("mixtral-8x7b", hardware)
    for rows in (1, 64):
        weights = model.attention_parameters + 4096 * 8 + expected_experts(8, 2, rows) * model.mlp_parameters
        seconds = 2 * 32 * weights / hardware.memory_bandwidth
        assert cost.dense_parts(rows)["gemm"] == pytest.approx(seconds, rel=0.03)


def test_narrow_weights_read_fewer_bytes_and_fp8_computes_faster_where_it_can() -> None:
    hardware = ideal("h100")
    by_dtype = {d: roofline(hardware=hardware, weight_dtype=d) for d in ("bf16", "fp8", "int4")}
    one = {d: cost.dense_parts(1)["gemm"] for d, cost in by_dtype.items()}
    assert one["bf16"] / one["fp8"] == pytest.approx(2, rel=0.01)
    assert one["bf16"] / one["int4"] == pytest.approx(2 / (0.5 + 2 / 128), rel=0.01)
    many = {d: cost.dense_parts(8192)["gemm"] for d, cost in by_dtype.items()}
    assert many["bf16"] / many["fp8"] == pytest.approx(2, rel=0.01)
    assert many["int4"] == pytest.approx(many["bf16"], rel=0.01)
    a100 = roofline(hardware=ideal(), weight_dtype="fp8").dense_parts(8192)["gemm"]  # no 8-bit float units there
    assert a100 == pytest.approx(roofline(hardware=ideal()).dense_parts(8192)["gemm"], rel=0.01)


def test_narrow_kv_halves_decode_attention() -> None:
    wide, narrow = (roofline(hardware=ideal(), kv_dtype=d).attention_s(8, 80_000, 0, 0, 0, 0) for d in ("bf16", "fp8"))
    assert wide == pytest.approx(2 * narrow)


def test_tensor_parallel_divides_products_and_replicates_kv_heads() -> None:
    one, four, sixteen = (roofline("llama-3-70b", ideal("h100"), tensor_parallel=tp) for tp in (1, 4, 16))
    assert one.dense_parts(1)["gemm"] == pytest.approx(4 * four.dense_parts(1)["gemm"], rel=0.01)
    reads = [cost.attention_s(8, 80_000, 0, 0, 0, 0) for cost in (one, four, sixteen)]
    assert reads[0] == pytest.approx(4 * reads[1]) == pytest.approx(8 * reads[2])  # 8 KV heads: one each, not half
    assert one.dense_parts(1)["allreduce"] == 0.0


def test_ring_allreduce_over_pcie_follows_the_closed_form() -> None:
    rows, tp, hardware = 512, 2, get_hardware("rtx-4090")
    moved = 2 * (tp - 1) / tp * rows * 4096 * 2
    each = RING_ALLREDUCE_S + moved / (hardware.link_bandwidth * RING_ALLREDUCE_EFFICIENCY)
    seconds = roofline(hardware=hardware, tensor_parallel=tp).dense_parts(rows)["allreduce"]
    assert seconds == pytest.approx(65 * each)  # two a layer, and the embedding


def test_small_allreduce_over_nvlink_meets_its_source() -> None:
    """1 MB on H100 takes 26.6 us with 2 devices, 40.2 with 4, 45.0 with 8; 32 kB takes 8.7, 9.2, 11.8."""
    for tp, large, small in ((2, 26.6e-6, 8.7e-6), (4, 40.2e-6, 9.2e-6), (8, 45.0e-6, 11.8e-6)):
        cost = roofline(hardware="h100", tensor_parallel=tp)
        assert cost.dense_parts(128)["allreduce"] / 65 == pytest.approx(large, rel=0.45)
        assert cost.dense_parts(4)["allreduce"] / 65 == pytest.approx(small, rel=0.25)


def test_heads_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel is 3; llama-3-8b has 32 heads"):
        roofline(tensor_parallel=3)


def windowed_by_hand(rows: list[tuple[int, int]], window: int) -> tuple[int, int]:
    decode = sum(min(c + 1, window) for n, c in rows if n == 1 and c > 0)
    pairs = sum(min(c + i + 1, window) for n, c in rows if not (n == 1 and c > 0) for i in range(n))
    return decode, pairs


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 200)), min_size=1, max_size=10), st.integers(1, 150))
def test_window_caps_each_row_exactly(rows: list[tuple[int, int]], window: int) -> None:
    _, context, _, _, pairs, _ = windowed_sums(shape_of(rows), window)
    assert (context, pairs) == windowed_by_hand(rows, window)


def test_window_from_sums_alone_is_capped_by_the_mean() -> None:
    shape = StepShape("ragged", 8, 8, 8, 8, 80_000)
    assert windowed_sums(shape, 4096)[1] == 8 * 4096


def test_window_changes_nothing_below_it_and_bounds_the_price_above() -> None:
    windowed, plain = (replace(MODELS["mistral-7b"], sliding_window=w) for w in (4096, None))
    costs = [
        make_cost_model("roofline", model=model, hardware="a100-80gb").step_cost for model in (windowed, plain)
    ]  # fmt: skip
    short, long, longer = (shape_of([(1, c)] * 4 + [(256, c)]) for c in (500, 8000, 16000))
    assert costs[0](short).device_s == costs[1](short).device_s
    assert costs[0](long).device_s == pytest.approx(costs[0](longer).device_s)
    assert costs[0](long).device_s < costs[1](long).device_s


def test_separate_kernels_price_a_mixed_step_as_its_two_halves() -> None:
    cost = roofline(mixed_attention="separate")
    decodes, prefill = cost.attention_s(32, 32_768, 0, 0, 0, 0), cost.attention_s(0, 0, 512, 512, 131_328, 1)
    assert cost.attention_s(32, 32_768, 512, 512, 131_328, 1) == pytest.approx(decodes + prefill)
    assert roofline().attention_s(32, 32_768, 512, 512, 131_328, 1) > decodes + prefill


def test_host_and_launch_terms_are_added_as_given() -> None:
    cost = roofline(layer_launch_s=1e-5, host_step_s=1e-3, host_request_s=1e-6)
    price = cost.step_cost(shape_of([(1, 10)] * 5))
    assert price.host_s == pytest.approx(1e-3 + 5e-6)
    assert price.breakdown()["launch"] == pytest.approx(32e-5)


@pytest.mark.parametrize(
    ("within", "beyond", "what"),
    [
        ([(2048, 0)], [(2049, 0)], "rows of a step above 2,048"),
        ([(1, 16383)] * 8, [(1, 16383)] * 8 + [(1, 0)], "KV positions of a step above 131,072"),
        ([(1, 18431)], [(1, 18432)], "mean context of a step's requests above 18,432"),
    ],
)
def test_steps_beyond_what_was_measured_are_counted_with_the_reason(
    within: list[tuple[int, int]], beyond: list[tuple[int, int]], what: str
) -> None:
    cost = roofline(hardware="rtx-4090")
    device_s(cost, within)
    assert cost.extrapolation() is None
    device_s(cost, beyond)
    told = cost.extrapolation()
    assert told is not None
    assert told["steps"] == 1
    assert told["reason"].endswith(f"fitted to: {what}")
    cost.reset()
    assert cost.extrapolation() is None


def test_cards_without_bounds_of_context_count_rows_alone() -> None:
    device_s(cost := roofline(), [(1, 100_000)] * 100)
    assert cost.extrapolation() is None


def test_padded_rectangle_costs_its_rows() -> None:
    """5,000 + 200 x 1 as a rectangle is 201 x 5,000 rows."""
    cost = roofline()
    ragged = cost.dense_parts(5_200)["gemm"]
    assert cost.dense_parts(1_005_000)["gemm"] / ragged == pytest.approx(1_005_000 / 5_200, rel=0.02)


def test_empty_step_costs_the_host_alone() -> None:
    price = roofline().step_cost(StepShape("ragged", 0, 0, 0, 0, 0))
    assert price.device_s == pytest.approx(roofline().attention_s(0, 0, 0, 0, 0, 0), abs=1e-3)


def test_wave_of_tiles_is_charged_whole_when_asked_for() -> None:
    hardware = replace(
        ideal(), sms=100, memory_bandwidth=1e30, efficiency=replace(IDEAL, tile_rows=64, tile_cols=64, wave=1.0)
    )
    one_wave = gemm_seconds(hardware, 1e12, 2.0, 64, 4096, 64 * 100)
    assert gemm_seconds(hardware, 1e12, 2.0, 1, 4096, 64) == pytest.approx(one_wave)
    assert gemm_seconds(hardware, 1e12, 2.0, 65, 4096, 64 * 100) == pytest.approx(2 * one_wave)


def test_product_takes_the_tile_that_suits_its_rows() -> None:
    """Of 64 and 128 rows a tile, with loads as long as the arithmetic of 64 rows: the larger once both are full."""
    eff = replace(IDEAL, tile_rows=64, tile_cols=64, tile_doublings=1, tile_edge=64.0)
    assert sorted(tiles(eff)) == [(64, 64), (64, 128), (128, 64)]
    hardware = replace(ideal(), sms=1, memory_bandwidth=1e30, efficiency=eff)

    def tile_s(rows: int, cols: int) -> float:
        return 2 * rows * cols * 4096 / 1e12 * (1 + 64 * (1 / rows + 1 / cols))

    assert gemm_seconds(hardware, 1e12, 2.0, 64, 4096, 64) == pytest.approx(tile_s(64, 64))
    assert gemm_seconds(hardware, 1e12, 2.0, 128, 4096, 64) == pytest.approx(tile_s(128, 64))
    assert gemm_seconds(hardware, 1e12, 2.0, 1, 4096, 256) == pytest.approx(2 * tile_s(64, 128))


def test_memory_bound_operators_move_at_the_rate_of_the_cache_that_holds_them() -> None:
    eff = replace(IDEAL, l2_bandwidth=4.0)
    hardware = replace(ideal(), l2_bytes=2**20, efficiency=eff)
    least, most = 1_000, 100_000_000  # bytes / 2: far within the cache, far beyond it
    assert vector_seconds(hardware, 1, least) == pytest.approx(2 * least / hardware.memory_bandwidth / 4, rel=1e-3)
    assert vector_seconds(hardware, 1, most) == pytest.approx(2 * most / hardware.memory_bandwidth, rel=1e-3)
    half = vector_seconds(hardware, 1, 2**19)
    assert half == pytest.approx(2**20 / hardware.memory_bandwidth * (1 / 4 + 1) / 2)


def test_memory_bound_operators_take_at_least_a_blocks_own_row() -> None:
    hardware = replace(ideal(), efficiency=replace(IDEAL, vector_s=1e-6, vector_number_s=1e-10))
    assert vector_seconds(hardware, 1, 10_000) == pytest.approx(2e-6)
    assert vector_seconds(hardware, 10**6, 10_000) == pytest.approx(2e10 / hardware.memory_bandwidth)


@given(st.floats(0.01, 100), st.floats(0.01, 10))
def test_waves_are_whole_where_full_never_fewer_than_blocks_and_grow_with_them(blocks: float, more: float) -> None:
    assert max(1.0, blocks) <= waves(blocks) <= -(-blocks // 1)
    assert waves(blocks) <= waves(blocks + more) + 1e-12
    assert waves(round(blocks) + 1.0) == round(blocks) + 1.0


def test_attention_with_fewer_blocks_than_sms_takes_its_longest_and_no_more() -> None:
    """4 heads' blocks on 108 SMs: a prefill and decodes side by side take what the longest takes alone."""
    model = replace(get_model("llama-3-8b"), heads=4, kv_heads=4)
    hardware = replace(ideal(), memory_bandwidth=1e30)
    cost = roofline(model=model, hardware=hardware)  # type: ignore[arg-type]  # a sheet, where names are usual
    alone = cost.attention_s(0, 0, 1, 1000, 1000, 1)
    assert cost.attention_s(3, 3 * 500, 1, 1000, 1000, 1) == pytest.approx(alone)
    assert cost.attention_s(3, 3 * 2000, 1, 1000, 1000, 1) == pytest.approx(2 * alone)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weight_dtype": "fp6"}, "unknown weight_dtype 'fp6'"),
        ({"kv_dtype": "bf15"}, "did you mean 'bf16'"),
        ({"mixed_attention": "fuse"}, "did you mean 'fused'"),
        ({"host_step_s": -1}, "host_step_s is -1"),
        ({"layer_launch": 1}, "did you mean 'layer_launch_s'"),
    ],
)
def test_wrong_options_get_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        roofline(**options)  # type: ignore[arg-type]  # wrong on purpose


def test_model_and_hardware_are_needed() -> None:
    with pytest.raises(ConfigError, match="needs a model and hardware"):
        make_cost_model("roofline", model="llama-3-8b")


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_on_every_device_is_priced_between_its_bounds(model: str) -> None:
    sheet = MODELS[model]
    for name, hardware in HARDWARE.items():
        cost = roofline(model, name)
        parts = cost.dense_parts(256)
        assert parts["gemm"] > 0.0
        read = 2.0 * sheet.layers * sheet.attention_parameters
        assert parts["gemm"] > read / hardware.memory_bandwidth / 1.01
