"""Operator tables: measured times of a model's kernels on one card, from a profile's folder or Vidur's CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import ConfigError, InputError

from ..server_meta import captured_sizes, entry, read_server
from .attention_grid import AttentionGrid

Floats = npt.NDArray[np.float64]

DENSE, SEQUENCES, ATTENTION = "profile_dense.csv", "profile_per_sequence.csv", "profile_attention.csv"
META, SERVER = "profile_meta.yaml", "meta.json"
LAYER_CALLS = {
    "layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1,
    "down_proj": 1,
}  # fmt: skip
"""Times that a layer calls an operator: a norm before attention and one before the MLP; the others once."""
STEP_CALLS = ("embedding", "final_layernorm")
"""Operators that a step calls once, whatever the number of layers."""
SEQUENCE_CALLS = ("lm_head", "sampler")
NEEDED = ("layernorm", "qkv_proj", "o_proj", "down_proj")
"""A dense table without one of these is none."""
VIDUR_LAYER_CALLS = {
    "input_layernorm": 1, "attn_pre_proj": 1, "attn_rope": 1, "attn_post_proj": 1, "post_attention_layernorm": 1,
    "mlp_up_proj": 1, "mlp_act": 1, "mlp_down_proj": 1, "add": 2,
}  # fmt: skip
"""The same for Vidur's names: it adds the residual in a kernel of its own, twice a layer."""
_ATTENTION_AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


@dataclass(frozen=True)
class Curve:
    """Seconds by a count, on a grid.

    Attributes:
        at: ``(points,)``, rising.
        parts: name -> ``(points,)`` seconds of an operator, all its calls in one layer (or in the step).
    """

    at: Floats
    parts: Mapping[str, Floats]

    def read(self, count: float) -> dict[str, float]:
        """Seconds by operator, on a straight line between grid points, and beyond the last two on their line."""
        return {name: line(count, self.at, seconds) for name, seconds in self.parts.items()}


@dataclass(frozen=True)
class OperatorTables:
    """What was measured of one model on one card.

    Attributes:
        path: where it was read from.
        device, model: as the profile names them; None where it does not.
        capability: CUDA compute capability, as 8.9; None where nothing tells it.
        layer: seconds of one layer, less attention, by tokens.
        step: seconds of what a step does once, by tokens.
        sequences: seconds of LM head and sampler by sequences; None: not measured.
        attention: of one layer; None: not measured.
        heads: ``(query heads, KV heads)`` of the model, where the table has them (Vidur's); else None.
        captured: row counts for which the server whose description lies beside the tables captured graphs.
        longest: its ``max_model_len``; None: no such description.
    """

    path: Path
    device: str | None
    model: str | None
    capability: float | None
    layer: Curve
    step: Curve
    sequences: Curve | None
    attention: AttentionGrid | None
    heads: tuple[int, int] | None = None
    captured: tuple[int, ...] = ()
    longest: int | None = None


def read_tables(path: str | Path, tensor_parallel: int = 1) -> OperatorTables:
    """The tables in a folder (`DENSE`, `SEQUENCES`, `ATTENTION`, `META`), or of Vidur's ``mlp.csv``.

    Args:
        path: the folder, or the CSV file.
        tensor_parallel: devices that share each layer; rows of another number are left out.

    Raises:
        InputError: a file that is missing or cannot be read as a table, with line and field.
        ConfigError: nothing was measured at this tensor parallelism.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return _read_folder(path, tensor_parallel)
    if path.suffix == ".csv":
        return _read_vidur(path, tensor_parallel)
    raise InputError(f"is no folder with {DENSE} and no .csv file; expected operator tables", path=path)


def line(x: float, xs: Floats, ys: Floats) -> float:
    """``ys`` at `x` on straight lines between points; beyond the last point on the line through the last two."""
    if x > xs[-1] and len(xs) > 1:
        return float(ys[-1] + (x - xs[-1]) * max(0.0, ys[-1] - ys[-2]) / (xs[-1] - xs[-2]))
    return float(np.interp(x, xs, ys))


def _read_folder(folder: Path, tensor_parallel: int) -> OperatorTables:
    meta = _read_meta(folder / META)
    degrees = meta.get("tp_degrees", [1])
    if degrees != [tensor_parallel]:
        raise ConfigError(f"tensor_parallel is {tensor_parallel}; {folder} was profiled at {degrees}")
    described = folder / SERVER
    server = read_server(described) if described.exists() else {}
    dense = _long_table(folder / DENSE, "tokens", (*LAYER_CALLS, *STEP_CALLS), NEEDED)
    at = next(iter(dense.values()))[0]
    layer = {name: LAYER_CALLS[name] * seconds for name, (_, seconds) in dense.items() if name in LAYER_CALLS}
    step = {name: seconds for name, (_, seconds) in dense.items() if name in STEP_CALLS}
    sequences = _long_table(folder / SEQUENCES, "sequences", SEQUENCE_CALLS, SEQUENCE_CALLS)
    heads = next(iter(sequences.values()))[0]
    return OperatorTables(
        path=folder,
        device=meta.get("gpu"),
        model=meta.get("model"),
        capability=_capability(server, described),
        layer=Curve(at, layer),
        step=Curve(at, step),
        sequences=Curve(heads, {name: seconds for name, (_, seconds) in sequences.items()}),
        attention=_attention(folder / ATTENTION),
        captured=captured_sizes(server, described),
        longest=entry(server, "engine_kwargs", "max_model_len"),
    )


def _read_vidur(path: Path, tensor_parallel: int) -> OperatorTables:
    rows: dict[int, tuple[int, dict[str, float]]] = {}
    names = (*VIDUR_LAYER_CALLS, "emb")
    columns = {name: f"time_stats.{name}.median" for name in names}
    counts = ("num_tokens", "num_tensor_parallel_workers", "n_head", "n_kv_head")
    heads: tuple[int, int] | None = None
    for number, row in _rows(path, (*counts, *columns.values())):
        tokens, degree, *pair = (_count(path, number, name, row[name], least=1) for name in counts)
        if degree != tensor_parallel:
            continue
        heads = (pair[0], pair[1])
        milliseconds = {name: _number(path, number, column, row[column]) for name, column in columns.items()}
        rows[tokens] = (number, milliseconds)
    if not rows or heads is None:
        raise ConfigError(f"tensor_parallel is {tensor_parallel}; {path} has no rows of it")
    at = np.array(sorted(rows), dtype=np.float64)
    seconds = {name: np.array([rows[int(n)][1][name] for n in at]) * 1e-3 for name in names}
    layer = {name: calls * seconds[name] for name, calls in VIDUR_LAYER_CALLS.items()}
    return OperatorTables(
        path, None, None, None, Curve(at, layer), Curve(at, {"emb": seconds["emb"]}), None, None, heads
    )


def _read_meta(path: Path) -> dict[str, Any]:
    import yaml

    try:
        meta = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError("is not YAML; expected the profile's description", path=path) from error
    if not isinstance(meta, dict):
        raise InputError("is no YAML mapping; expected the profile's description (gpu, model, tp_degrees)", path=path)
    return meta


def _capability(server: Mapping[str, Any], path: Path) -> float | None:
    given = entry(server, "hardware", "device_capability")
    try:
        return None if given is None else float(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"hardware.device_capability is {given!r}; expected a number as 8.9", path=path) from error


def _long_table(
    path: Path, count: str, known: Sequence[str], needed: Sequence[str]
) -> dict[str, tuple[Floats, Floats]]:
    """``layer,COUNT,time_us`` as layer -> (counts, seconds), all layers on the same counts."""
    found: dict[str, dict[int, float]] = {}
    for number, row in _rows(path, ("layer", count, "time_us")):
        if row["layer"] not in known:
            raise InputError(f"layer is {row['layer']!r}; expected one of {', '.join(known)}", path=path, line=number)
        points = found.setdefault(row["layer"], {})
        at = _count(path, number, count, row[count], least=1)
        if at in points:
            raise InputError(f"{row['layer']} at {at} {count} stands here again; expected once", path=path, line=number)
        points[at] = _number(path, number, "time_us", row["time_us"]) * 1e-6
    for name in needed:
        if name not in found:
            raise InputError(f"has no rows of layer {name}; expected {', '.join(needed)}", path=path)
    grid = sorted(next(iter(found.values())))
    for name, points in found.items():
        if sorted(points) != grid:
            raise InputError(f"{name} was measured at other {count} than the first layer; expected the same", path=path)
    at_all = np.array(grid, dtype=np.float64)
    return {name: (at_all, np.array([points[n] for n in grid])) for name, points in found.items()}


def _attention(path: Path) -> AttentionGrid:
    cells: dict[tuple[int, ...], float] = {}
    for number, row in _rows(path, (*_ATTENTION_AXES, "time_us")):
        cell = tuple(_count(path, number, name, row[name], least=0) for name in _ATTENTION_AXES)
        if not cell[0] + cell[2] or (not cell[0] and cell[1]) or (not cell[2] and cell[3]):
            raise InputError(
                "prefill_chunk, kv_prefill, n_decode, kv_decode are "
                f"{', '.join(map(str, cell))}; expected rows of a prefill, of decodes, or of both",
                path=path, line=number,
            )  # fmt: skip
        if cell in cells:
            raise InputError("a point that stands in the file already; expected each once", path=path, line=number)
        cells[cell] = _number(path, number, "time_us", row["time_us"]) * 1e-6
    return AttentionGrid.of(cells, path)


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows with their line numbers; InputError where the file or a column is missing."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for name in columns:
                if name not in (reader.fieldnames or ()):
                    raise InputError(f"has no column {name}; expected {', '.join(columns)}", path=path, line=1)
            for row in reader:
                if any(row[name] is None for name in columns):
                    raise InputError("has too few fields", path=path, line=reader.line_num)
                yield reader.line_num, row
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text; expected a CSV table", path=path) from error


def _number(path: Path, number: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise InputError(f"{name} is {text!r}; expected a time > 0", path=path, line=number)
    return value


def _count(path: Path, number: int, name: str, text: str, *, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < least:
        raise InputError(f"{name} is {text!r}; expected a whole number >= {least}", path=path, line=number)
    return value
