"""Measured operator times of two cards, point by point beside what the roofline prices.

Dense operators by token count (and tensor parallelism), LM head and sampler by sequences, attention by the four axes of
its grid, and whole steps made of them. Every second count along each axis is *held out*: points that no efficiency of
`simulator.hardware` was fitted to (`held`). The first count, usually one token, is among the fitted ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from simulator.costs.attention_grid import AttentionGrid, Bools, Floats
from simulator.costs.memo import Memo
from simulator.costs.operator_tables import Curve, OperatorTables, read_tables
from simulator.costs.roofline import RooflineCost
from simulator.costs.roofline_dense import Dense
from simulator.hardware import HardwareSheet
from simulator.models import get_model

VIDUR = "profiles/vidur_a100_llama-3-8b_mlp.csv"
VLLM = "reference/vllm-0.19-rtx4090-llama-3.1-8b"
MODEL_A100, MODEL_4090 = "llama-3-8b", "llama-3.1-8b"
DEGREES = (1, 2, 4, 8)
MOST_POSITIONS = 131072
"""Attention with more KV than this is a group of its own, fitted to nothing: three times the 4090's own KV pool."""
OPERATORS = {
    "qkv": ("qkv_proj", "attn_pre_proj"),
    "out": ("o_proj", "attn_post_proj"),
    "up": ("gate_up_proj", "mlp_up_proj"),
    "down": ("down_proj", "mlp_down_proj"),
    "norms": ("layernorm", "input_layernorm", "post_attention_layernorm", "add"),
    "rope": ("rotary_emb", "attn_rope"),
    "act": ("act_fn", "mlp_act"),
}
"""The roofline's names -> those of vLLM's and Vidur's tables. Vidur's norms have their residual in a kernel apart."""
Names = tuple[str, ...]
PRODUCTS: Names = ("qkv", "out", "up", "down")
VECTORS: Names = ("norms", "rope", "act")
SUMS: dict[str, Names] = {"products": PRODUCTS, "memory-bound": VECTORS, "dense": (*PRODUCTS, *VECTORS)}


class Point(NamedTuple):
    """One measurement, seconds; `held`: not among those that the sheets were fitted to."""

    what: str
    measured_s: float
    predicted_s: float
    held: bool


Groups = dict[str, list[Point]]


class Cell(NamedTuple):
    """One point of the attention grid: a prefill of `chunk` rows after `before`, and decodes of equal `history`."""

    chunk: int
    before: int
    decodes: int
    history: int
    measured_s: float
    held: bool

    @property
    def what(self) -> str:
        """As text."""
        return f"prefill {self.chunk} after {self.before}, {self.decodes} x {self.history}"

    @property
    def rows(self) -> int:
        """Of the step."""
        return self.chunk + self.decodes

    @property
    def positions(self) -> int:
        """KV positions computed before the step."""
        return self.before + self.decodes * self.history


def a100_groups(data: Path, hardware: HardwareSheet) -> Groups:
    """Vidur's table: a layer's operators and their sums, each tensor parallel degree, and the step they make."""
    groups: Groups = {}
    for degree in DEGREES:
        tables = tables_of(data / VIDUR, degree)
        found = dense_groups(tables, cost_of(MODEL_A100, hardware, degree))
        groups |= {f"A100 {name}, tp {degree}": points for name, points in found.items()}
    return groups


def rtx_4090_groups(data: Path, hardware: HardwareSheet) -> Groups:
    """A profile by vLLM: dense operators, LM head and sampler, attention, and the steps they make."""
    tables, cost = tables_of(data / VLLM, 1), cost_of(MODEL_4090, hardware)
    groups = {**dense_groups(tables, cost), **logits_groups(tables, cost), **attention_groups(tables, cost)}
    groups["steps"] = list(step_points(tables, cost))
    return {f"RTX 4090 {name}": points for name, points in groups.items()}


def dense_groups(
    tables: OperatorTables, cost: RooflineCost, held: bool | None = None, *, sums: Mapping[str, Names] = SUMS
) -> Groups:
    """By token count: each operator of a layer, all products, all memory-bound operators, all dense operators.

    Only the points held out, or those that are not, where `held` says so; only some sums and their operators, where
    `sums` does.
    """
    assert cost.model is not None
    assert cost.hardware is not None
    layer = Dense(cost.model, cost.hardware, cost.tensor_parallel, "bf16", 0.0)
    operators = dict.fromkeys(operator for each in sums.values() for operator in each)
    groups: Groups = {name: [] for name in (*operators, *sums)}
    for at in range(len(tables.layer.at)) if held is None else range(int(held), len(tables.layer.at), 2):
        count = int(tables.layer.at[at])
        measured = measured_operators(tables.layer, at)
        predicted = layer.products(count) if "qkv" in operators else {}
        predicted |= layer.vectors(count) if "rope" in operators else {}
        for name, parts in {**{name: (name,) for name in operators}, **sums}.items():
            pair = (sum(times[part] for part in parts) for times in (measured, predicted))
            groups[name].append(Point(f"{count} tokens", *pair, held=at % 2 == 1))
    return groups


def measured_operators(layer: Curve, at: int) -> dict[str, float]:
    """Seconds of one layer's operators, under the roofline's names, at the table's count number `at`."""
    return {
        name: float(sum(layer.parts[theirs][at] for theirs in names if theirs in layer.parts))
        for name, names in OPERATORS.items()
    }


def logits_groups(tables: OperatorTables, cost: RooflineCost) -> Groups:
    """LM head and sampler by sequences."""
    assert tables.sequences is not None
    groups: Groups = {"lm_head": [], "sampler": []}
    for at, count in enumerate(tables.sequences.at):
        for name, points in groups.items():
            pair = (float(tables.sequences.parts[name][at]), cost.logits_parts(int(count))[name])
            points.append(Point(f"{count:.0f} sequences", *pair, held=at % 2 == 1))
    return groups


def attention_groups(tables: OperatorTables, cost: RooflineCost) -> Groups:
    """Attention of one layer: decodes alone, a prefill alone, both; and what has more KV than `MOST_POSITIONS`."""
    groups: Groups = {f"{kind} attention": [] for kind in ("decode", "prefill", "mixed")}
    groups["attention of more KV"] = []
    for cell in cells_of(tables.path):
        seconds = attention_s(cell, cost) / _layers(cost)
        kind = f"{'decode' if not cell.chunk else 'mixed' if cell.decodes else 'prefill'} attention"
        if cell.positions > MOST_POSITIONS:
            kind = "attention of more KV"
        groups[kind].append(Point(cell.what, cell.measured_s, seconds, cell.held))
    return groups


def attention_s(cell: Cell, cost: RooflineCost) -> float:
    """The roofline's seconds of all layers for a point of the grid.

    The new token of a profiled decode opens a key tile of its own. Contexts of a real batch end anywhere in theirs,
    and the roofline, which sees their sum, adds half a tile; so beside a prefill it is told the middle of that tile.
    """
    assert cost.hardware is not None
    tile, context = cost.hardware.efficiency.key_tile, cell.history + 1
    if cell.chunk and context > tile:
        context = -(-context // tile) * tile - tile // 2
    pairs = cell.chunk * cell.before + cell.chunk * (cell.chunk + 1) // 2
    prefill = (cell.chunk, cell.chunk + cell.before, pairs, 1) if cell.chunk else (0, 0, 0, 0)
    return cost.attention_s(cell.decodes, cell.decodes * context, *prefill)


def step_points(tables: OperatorTables, cost: RooflineCost) -> Iterator[Point]:
    """Whole steps: dense operators, attention, LM head and sampler."""
    for cell, measured_s, held in steps_of(tables.path):
        samples = cell.decodes + (cell.chunk > 0)
        dense, logits = cost.dense_parts(cell.rows), cost.logits_parts(samples)
        predicted = dense["gemm"] + dense["memory_bound"] + logits["lm_head"] + logits["sampler"]
        yield Point(cell.what, measured_s, predicted + attention_s(cell, cost), held)


@cache
def steps_of(path: Path) -> list[tuple[Cell, float, bool]]:
    """Attention points with the measured seconds of their whole step, where each operator has a time for it.

    A step is held out where its attention is and its token count is not one that the dense operators were fitted to.
    """
    tables = tables_of(path, 1)
    assert tables.sequences is not None
    layers, fitted, most = get_model(MODEL_4090).layers, set(tables.layer.at[::2]), tables.layer.at[-1]
    layer_s = Memo(lambda rows: sum(tables.layer.read(rows).values()))
    step_s = Memo(lambda rows: sum(tables.step.read(rows).values()))
    logits_s = Memo(lambda rows, curve=tables.sequences: sum(curve.read(rows).values()))
    return [
        (
            cell,
            layers * (layer_s[cell.rows] + cell.measured_s)
            + step_s[cell.rows]
            + logits_s[cell.decodes + (cell.chunk > 0)],
            cell.held and cell.rows not in fitted,
        )
        for cell in cells_of(path)
        if cell.rows <= most and cell.positions <= MOST_POSITIONS
    ]


@cache
def cells_of(path: Path) -> list[Cell]:
    """Measured points of the attention grid; held out are those at an odd place, counted along all axes."""
    grid = tables_of(path, 1).attention
    assert grid is not None
    alone: Mapping[tuple[int, ...], tuple[Floats, Bools]] = {
        (2, 3): (grid.decode_s, grid.decode_filled),
        (0, 1): (grid.prefill_s, grid.prefill_filled),
        (0, 1, 2, 3): (grid.mixed_s, grid.mixed_filled),
    }
    return [cell for axes, (seconds, filled) in alone.items() for cell in _table(grid, axes, seconds, filled)]


@cache
def tables_of(path: Path, degree: int) -> OperatorTables:
    """Operator tables, read once."""
    return read_tables(path, degree)


def cost_of(model: str, hardware: HardwareSheet, degree: int = 1) -> RooflineCost:
    """The roofline of a model on a card."""
    return RooflineCost(model=get_model(model), hardware=hardware, tensor_parallel=degree)


def _table(grid: AttentionGrid, axes: tuple[int, ...], seconds: Floats, filled: Bools) -> Iterator[Cell]:
    lines = (grid.chunk, grid.before, grid.decodes, grid.context)
    for place in product(*(range(len(lines[axis])) for axis in axes)):
        if not filled[place]:
            counts = [0, 0, 0, 0]
            for axis, at in zip(axes, place, strict=True):
                counts[axis] = int(lines[axis][at])
            yield Cell(*counts, float(seconds[place]), sum(place) % 2 == 1)


def _layers(cost: RooflineCost) -> int:
    assert cost.model is not None
    return cost.model.layers
