"""How well the roofline meets measured operator times, and how its efficiencies were fitted; prints JSON.

    python benchmarks/calibration.py                    errors of the hardware sheets as they are
    python benchmarks/calibration.py --fit rtx-4090     search the efficiencies anew and print them

The tables are read from the folder in the environment variable BATCHSCOPE_DATA (default ../shared/data).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from scheduler.plan import StepShape
from simulator.costs.roofline import RooflineCost
from simulator.hardware import Efficiency, HardwareSheet, get_hardware

LAYERS = 32
VIDUR = "profiles/vidur_a100_llama-3-8b_mlp.csv"
VLLM = "reference/vllm-0.19-rtx4090-llama-3.1-8b"
# Published A100 bf16 operator times of Llama-3-8B: matrix products of all layers by rows (s) ...
PUBLISHED_PRODUCTS = {1: 9.9e-3, 64: 10.0e-3, 128: 11.7e-3, 256: 17.5e-3, 512: 30.1e-3, 1024: 55.9e-3, 4096: 214e-3}
# ... and attention of one layer: decode by (requests, context), prefill by prompt tokens.
PUBLISHED_DECODE = {(1, 1): 12.5e-6, (64, 1024): 193e-6}
PUBLISHED_PREFILL = {4096: 0.90e-3}
MOST_POSITIONS = 131072
"""Attention rows of the table with more KV than this are left out: they exceed the card's own KV pool three times."""

Pairs = list[tuple[str, float, float]]
"""``(what, measured s, predicted s)``"""


class Attention(NamedTuple):
    """One row of the attention table, times in seconds."""

    chunk: int
    before: int
    decodes: int
    context: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", choices=("a100-80gb", "rtx-4090"))
    name = parser.parse_args().fit
    data = Path(os.environ.get("BATCHSCOPE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    print(json.dumps(fit(name, data) if name else report(data), indent=2))


def report(data: Path) -> dict[str, object]:
    """Errors of every group of measurements, ``predicted / measured - 1``."""
    a100, card = get_hardware("a100-80gb"), get_hardware("rtx-4090")
    groups = {**a100_groups(data, a100), **rtx_4090_groups(data, card), "4090 served decodes": served(data, card)}
    return {name: summary(pairs, every=name == "a100 published") for name, pairs in groups.items()}


def summary(pairs: Pairs, *, every: bool = False) -> dict[str, object]:
    errors = {what: predicted / measured - 1 for what, measured, predicted in pairs}
    size = sorted(abs(error) for error in errors.values())
    worst = max(errors, key=lambda what: abs(errors[what]))
    result: dict[str, object] = {
        "points": len(pairs),
        "median": round(statistics.median(size), 4),
        "p95": round(size[int(0.95 * (len(size) - 1))], 4),
        "worst": round(size[-1], 4),
        "worst_at": worst,
        "bias": round(statistics.fmean(errors.values()), 4),
    }
    return {**result, "errors": {what: round(error, 4) for what, error in errors.items()}} if every else result


def a100_groups(data: Path, hardware: HardwareSheet) -> dict[str, Pairs]:
    """Published figures, and Vidur's table: products and memory-bound operators of all layers by tokens."""
    groups = {"a100 published": published(hardware)}
    for tp, rows in vidur_table(data / VIDUR).items():
        cost = roofline("llama-3-8b", hardware, tp)
        parts = {tokens: cost.dense_parts(tokens) for tokens in rows}
        groups[f"a100 products, tp {tp}"] = [
            (f"{tokens} tokens", LAYERS * sum(ops[name] for name in VIDUR_PRODUCTS), parts[tokens]["gemm"])
            for tokens, ops in rows.items()
        ]
        groups[f"a100 memory-bound, tp {tp}"] = [
            (f"{tokens} tokens", LAYERS * vidur_vectors(ops) + ops["emb"], parts[tokens]["memory_bound"])
            for tokens, ops in rows.items()
        ]
    return groups


def published(hardware: HardwareSheet) -> Pairs:
    """The published A100 figures."""
    cost = roofline("llama-3-8b", hardware)
    pairs = [(f"products, {n} tokens", s, cost.dense_parts(n)["gemm"]) for n, s in PUBLISHED_PRODUCTS.items()]
    for (requests, context), seconds in PUBLISHED_DECODE.items():
        predicted = cost.attention_s(requests, requests * context, 0, 0, 0, 0) / LAYERS
        pairs.append((f"decode attention, {requests} x {context}", seconds, predicted))
    for tokens, seconds in PUBLISHED_PREFILL.items():
        predicted = cost.attention_s(0, 0, tokens, tokens, tokens * (tokens + 1) // 2, 1) / LAYERS
        pairs.append((f"prefill attention, {tokens}", seconds, predicted))
    return pairs


def rtx_4090_groups(data: Path, hardware: HardwareSheet) -> dict[str, Pairs]:
    """Profile by vLLM of an RTX 4090: products, LM head, sampler, memory-bound operators, attention."""
    cost = roofline("llama-3.1-8b", hardware)
    dense = long_table(data / VLLM / "profile_dense.csv", "tokens")
    rows = long_table(data / VLLM / "profile_per_sequence.csv", "sequences")
    groups = {
        "4090 products": [
            (f"{n} tokens", LAYERS * sum(ops[name] for name in VLLM_PRODUCTS), cost.dense_parts(n)["gemm"])
            for n, ops in dense.items()
        ],
        "4090 memory-bound": [
            (
                f"{n} tokens",
                LAYERS * (2 * ops["layernorm"] + ops["rotary_emb"] + ops["act_fn"]) + ops["embedding"],
                cost.dense_parts(n)["memory_bound"],
            )
            for n, ops in dense.items()
        ],
        "4090 lm_head": [(f"{n} rows", ops["lm_head"], cost.logits_parts(n)["lm_head"]) for n, ops in rows.items()],
        "4090 sampler": [(f"{n} rows", ops["sampler"], cost.logits_parts(n)["sampler"]) for n, ops in rows.items()],
        "4090 decode attention": [],
        "4090 prefill attention": [],
        "4090 mixed attention": [],
    }
    for row in attention_table(data / VLLM / "profile_attention.csv"):
        kind = "decode" if not row.chunk else "mixed" if row.decodes else "prefill"
        what = f"prefill {row.chunk} after {row.before}, {row.decodes} x {row.context}"
        pairs = row.chunk * row.before + row.chunk * (row.chunk + 1) // 2
        sums = (row.decodes, row.decodes * row.context, row.chunk, row.chunk + row.before, pairs, 1)
        groups[f"4090 {kind} attention"].append((what, row.seconds, cost.attention_s(*sums) / LAYERS))
    return groups


def served(data: Path, hardware: HardwareSheet) -> Pairs:
    """Steps of a vLLM server in seconds without any prefill: requests running / tokens a second, from its own metrics.

    Nothing was fitted to these. The server planned ahead (async scheduling), so the host's time is hidden.
    """
    cost = roofline("llama-3.1-8b", hardware)
    meta = json.loads((data / VLLM / "meta.json").read_text(encoding="utf-8"))
    positions = (meta["kv_cache"]["num_gpu_blocks"] - 1) * meta["kv_cache"]["block_size"]
    seconds = [{name: float(value) for name, value in row.items()} for row in _rows(data / VLLM / "timeseries.csv")]
    pairs: Pairs = []
    for before, now, after in zip(seconds, seconds[1:], seconds[2:], strict=False):
        if any(row["prompt_throughput"] for row in (before, now, after)) or not now["gen_throughput"]:
            continue
        running, read = int(now["running"]), int(now["kv_cache_pct"] / 100 * positions)
        step_s = (before["running"] + now["running"]) / 2 / now["gen_throughput"]
        shape = StepShape("ragged", running, running, running, running, read)
        pairs.append((f"second {now['t']:g}", step_s, cost.step_cost(shape).device_s))
    return pairs


def roofline(model: str, hardware: HardwareSheet, tp: int = 1) -> RooflineCost:
    from simulator.models import get_model

    return RooflineCost(model=get_model(model), hardware=hardware, tensor_parallel=tp)


VIDUR_PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
VLLM_PRODUCTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


def vidur_vectors(ops: dict[str, float]) -> float:
    """Memory-bound operators of one layer: the residual is added in a kernel of its own in that table."""
    names = ("input_layernorm", "post_attention_layernorm", "attn_rope", "mlp_act")
    return sum(ops[name] for name in names) + 2 * ops["add"]


@cache
def vidur_table(path: Path) -> dict[int, dict[int, dict[str, float]]]:
    """Median seconds: tensor-parallel degree -> tokens -> operator."""
    found: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in _rows(path):
        ops = found[int(row["num_tensor_parallel_workers"]), int(row["num_tokens"])]
        for column, value in row.items():
            if column.endswith(".median"):
                ops[column.split(".")[1]].append(float(value) * 1e-3)
    table: dict[int, dict[int, dict[str, float]]] = defaultdict(dict)
    for (tp, tokens), ops in sorted(found.items()):
        table[tp][tokens] = {name: statistics.fmean(values) for name, values in ops.items()}
    return table


@cache
def long_table(path: Path, key: str) -> dict[int, dict[str, float]]:
    """Seconds: tokens or sequences -> layer."""
    table: dict[int, dict[str, float]] = defaultdict(dict)
    for row in _rows(path):
        table[int(row[key])][row["layer"]] = float(row["time_us"]) * 1e-6
    return table


@cache
def attention_table(path: Path) -> list[Attention]:
    """Rows with at most `MOST_POSITIONS` KV positions."""
    rows = [
        Attention(
            int(row["prefill_chunk"]),
            int(row["kv_prefill"]),
            int(row["n_decode"]),
            int(row["kv_decode"]),
            float(row["time_us"]) * 1e-6,
        )
        for row in _rows(path)
    ]
    return [row for row in rows if row.before + row.decodes * row.context <= MOST_POSITIONS]


def _rows(path: Path) -> Iterable[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


FITTED = {
    "products": ("kernel_s", "bandwidth", "compute", "wave", "tile_overhead", "blend"),
    "memory-bound": ("vector_s", "vector_bandwidth"),
    "decode attention": ("decode_s", "decode_block_s", "kv_bandwidth"),
    "prefill and mixed attention": ("attention_compute", "tile_keys", "tail"),
    "sampler": ("sampler_s", "sampler_passes"),
}
PUBLISHED_WEIGHT = 1.0
"""Weight of the published A100 figures against Vidur's table, which disagrees with them by up to a quarter."""


def fit(name: str, data: Path) -> dict[str, object]:
    """Efficiencies by coordinate search from those of the sheet, least mean square of log(predicted / measured)."""
    hardware = get_hardware(name)
    for what, fields in FITTED.items():
        if name == "rtx-4090" or what in ("products", "memory-bound"):  # all that the A100 has a table for
            loss = _loss_4090(what, data) if name == "rtx-4090" else _loss_a100(what, data)
            hardware = search(hardware, fields, loss)
    return {"hardware": name, "efficiency": hardware.as_dict()["efficiency"]}


def search(hardware: HardwareSheet, fields: Iterable[str], loss: Callable[[HardwareSheet], float]) -> HardwareSheet:
    """The sheet with `fields` of its efficiency moved by shrinking factors while that lowers `loss`."""
    best, step = loss(hardware), 0.16
    while step > 0.004:
        moved = False
        for field in fields:
            for factor in (1 + step, 1 / (1 + step)):
                value = getattr(hardware.efficiency, field) * factor
                if field in ("wave", "tail") and value > 1:
                    continue
                trial = replace(hardware, efficiency=_rounded(hardware.efficiency, field, value))
                if (found := loss(trial)) < best - 1e-7:
                    hardware, best, moved = trial, found, True
        step = step if moved else step / 2
    return hardware


def _rounded(efficiency: Efficiency, field: str, value: float) -> Efficiency:
    changes: dict[str, Any] = {field: float(f"{value:.4g}")}
    return replace(efficiency, **changes)


def _loss_a100(what: str, data: Path) -> Callable[[HardwareSheet], float]:
    tables = vidur_table(data / VIDUR)
    tables = {tp: dict(list(rows.items())[::3]) for tp, rows in tables.items()}

    def loss(hardware: HardwareSheet) -> float:
        pairs: Pairs = []
        for tp, rows in tables.items():
            cost = roofline("llama-3-8b", hardware, tp)
            for tokens, ops in rows.items():
                parts = cost.dense_parts(tokens)
                if what == "products":
                    measured = LAYERS * sum(ops[name] for name in VIDUR_PRODUCTS)
                    pairs.append(("", measured, parts["gemm"]))
                else:
                    pairs.append(("", LAYERS * vidur_vectors(ops) + ops["emb"], parts["memory_bound"]))
        extra = PUBLISHED_WEIGHT * _mean_square(published(hardware)[:7]) if what == "products" else 0.0
        return _mean_square(pairs) + extra

    return loss


def _loss_4090(what: str, data: Path) -> Callable[[HardwareSheet], float]:
    names = {
        "products": ("4090 products", "4090 lm_head"),
        "prefill and mixed attention": ("4090 prefill attention", "4090 mixed attention"),
    }.get(what, (f"4090 {what}",))

    def loss(hardware: HardwareSheet) -> float:
        groups = rtx_4090_groups(data, hardware)
        return sum(_mean_square(groups[name]) for name in names)

    return loss


def _mean_square(pairs: Pairs) -> float:
    return statistics.fmean(math.log(predicted / measured) ** 2 for _, measured, predicted in pairs)


if __name__ == "__main__":
    main()
