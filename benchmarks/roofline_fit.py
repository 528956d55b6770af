"""How the roofline's efficiencies are fitted: to every second count of the tables, and to published figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.roofline_tables import (
    DEGREES,
    MODEL_4090,
    MODEL_A100,
    SUMS,
    VIDUR,
    VLLM,
    Groups,
    Point,
    attention_groups,
    cost_of,
    dense_groups,
    logits_groups,
    tables_of,
)
from simulator.costs.operator_tables import OperatorTables
from simulator.costs.roofline import RooflineCost
from simulator.hardware import HardwareSheet, get_hardware
from simulator.models import get_model

PUBLISHED_PRODUCTS = {1: 9.9e-3, 64: 10.0e-3, 128: 11.7e-3, 256: 17.5e-3, 512: 30.1e-3, 1024: 55.9e-3, 4096: 214e-3}
"""Published A100 bf16 operator times of Llama-3-8B: matrix products of all layers by rows, seconds."""
PUBLISHED_DECODE = {(1, 1): 12.5e-6, (64, 1024): 193e-6}
"""Decode attention of one layer by (requests, context)."""
PUBLISHED_PREFILL = {4096: 0.90e-3}
"""Prefill attention of one layer by prompt tokens."""
PUBLISHED_WEIGHT, OPERATOR_WEIGHT = 0.7, 0.3
"""Of published products, which disagree with Vidur's by up to a quarter; of single operators, beside their sum."""

PRODUCT_FIELDS = ("kernel_s", "bandwidth", "compute", "wave", "tile_overhead", "tile_edge", "blend")
VECTOR_FIELDS = ("vector_s", "vector_number_s", "vector_bandwidth", "l2_bandwidth")
DECODE_FIELDS = ("decode_s", "decode_tile_s", "decode_block_s", "kv_bandwidth")
MIXED_FIELDS = ("attention_s", "attention_compute", "tile_keys", "empty_keys", "tail")
SAMPLER_FIELDS = ("sampler_s", "sampler_passes")
MOST = {"wave": 1.0, "tail": 2.0}
"""Above these a longer prefill, or one row more, could come out cheaper."""

Loss = Callable[[HardwareSheet], float]


def fit(name: str, data: Path, *, held: bool = False, step: float = 0.16) -> HardwareSheet:
    """The sheet of `name` with efficiencies searched from those it has.

    Args:
        name: ``a100-80gb`` or ``rtx-4090``.
        data: folder of the tables.
        held: fit to the points that are held out, and not to the others: the test the other way round.
        step: first factor of the search, less 1.
    """
    hardware = get_hardware(name)
    for fields, loss in losses(name, data, held).items():
        hardware = search(hardware, fields, loss, step)
    return hardware


def losses(name: str, data: Path, held: bool = False) -> Mapping[tuple[str, ...], Loss]:
    """Fields to search together -> what to make small."""
    if name == "a100-80gb":
        return {
            PRODUCT_FIELDS: lambda sheet: (
                _a100_loss(data, sheet, held, "products") + PUBLISHED_WEIGHT * _published(sheet)
            ),
            VECTOR_FIELDS: lambda sheet: _a100_loss(data, sheet, held, "memory-bound"),
        }
    tables = tables_of(data / VLLM, 1)

    def dense(sheet: HardwareSheet, name: str) -> float:
        return _dense_loss(tables, cost_of(MODEL_4090, sheet), held, name)

    def other(sheet: HardwareSheet, groups: Callable[[OperatorTables, RooflineCost], Groups], *names: str) -> float:
        found = groups(tables, cost_of(MODEL_4090, sheet))
        return sum(_mean_square(point for point in found[name] if point.held == held) for name in names)

    return {
        PRODUCT_FIELDS: lambda sheet: dense(sheet, "products") + other(sheet, logits_groups, "lm_head"),
        VECTOR_FIELDS: lambda sheet: dense(sheet, "memory-bound"),
        DECODE_FIELDS: lambda sheet: other(sheet, attention_groups, "decode attention"),
        MIXED_FIELDS: lambda sheet: other(sheet, attention_groups, "prefill attention", "mixed attention"),
        SAMPLER_FIELDS: lambda sheet: other(sheet, logits_groups, "sampler"),
    }


def search(hardware: HardwareSheet, fields: Iterable[str], loss: Loss, step: float = 0.16) -> HardwareSheet:
    """The sheet with `fields` of its efficiency moved by shrinking factors while that lowers `loss`."""
    best = loss(hardware)
    while step > 0.004:
        moved = False
        for field in fields:
            for factor in (1 + step, 1 / (1 + step)):
                value = float(f"{getattr(hardware.efficiency, field) * factor:.4g}")
                if value > MOST.get(field, math.inf):
                    continue
                trial = replace(hardware, efficiency=replace(hardware.efficiency, **{field: value}))
                if (found := loss(trial)) < best - 1e-7:
                    hardware, best, moved = trial, found, True
        step = step if moved else step / 2
    return hardware


def published(hardware: HardwareSheet) -> list[Point]:
    """The published A100 figures; all of the products are fitted to."""
    cost = cost_of(MODEL_A100, hardware)
    layers = get_model(MODEL_A100).layers
    points = [
        Point(f"products, {n} tokens ({layers} layers)", s, cost.dense_parts(n)["gemm"], False)
        for n, s in PUBLISHED_PRODUCTS.items()
    ]
    for (requests, context), seconds in PUBLISHED_DECODE.items():
        predicted = cost.attention_s(requests, requests * context, 0, 0, 0, 0) / layers
        points.append(Point(f"decode attention, {requests} x {context} (one layer)", seconds, predicted, False))
    for tokens, seconds in PUBLISHED_PREFILL.items():
        predicted = cost.attention_s(0, 0, tokens, tokens, tokens * (tokens + 1) // 2, 1) / layers
        points.append(Point(f"prefill attention, {tokens} (one layer)", seconds, predicted, False))
    return points


def _a100_loss(data: Path, hardware: HardwareSheet, held: bool, name: str) -> float:
    tables = [(tables_of(data / VIDUR, degree), cost_of(MODEL_A100, hardware, degree)) for degree in DEGREES]
    return statistics.fmean(_dense_loss(table, cost, held, name) for table, cost in tables)


def _published(hardware: HardwareSheet) -> float:
    return _mean_square(point for point in published(hardware)[: len(PUBLISHED_PRODUCTS)])


def _dense_loss(tables: OperatorTables, cost: RooflineCost, held: bool, name: str) -> float:
    """Of a sum of operators, and with less weight of each of them."""
    groups = dense_groups(tables, cost, held, sums={name: SUMS[name]})
    squares = [_mean_square(groups[each]) for each in (name, *SUMS[name])]
    return squares[0] + OPERATOR_WEIGHT * statistics.fmean(squares[1:])


def _mean_square(points: Iterable[Point]) -> float:
    return statistics.fmean(math.log(point.predicted_s / point.measured_s) ** 2 for point in points)
