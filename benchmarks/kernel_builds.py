"""Compiles every kernel as it is shipped for sm_80, sm_90, sm_100 and gfx942, with no GPU: registers and spills. JSON.

    python benchmarks/kernel_builds.py [--quick] [--target sm_90] [--kernel attention] [--dtype fp32] [--table]

The launchers themselves run, on CPU tensors of a real model's shapes, under a driver that compiles and does not launch:
what is compiled is what a launch would compile, divisibility of strides and pointers included. For sm_* `ptxas -v` of
Triton's own package counts registers and spilled bytes; for gfx942 the code object's metadata does. Exit code 1 when a
kernel spills or wants more shared memory than a program can have.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import triton  # type: ignore[import-untyped]  # triton ships no type information
from torch import Tensor
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.backends.driver import DriverBase  # type: ignore[import-untyped]
from triton.runtime.jit import JITFunction  # type: ignore[import-untyped]

from backend.kernels import attention, gather, kv_write, mlp, norm, prepare, rope, sample
from backend.kernels.tiles import INTERPRETED

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
"""Bytes of shared memory a program can have (CUDA C++ programming guide, table of compute capabilities; CDNA 3 ISA)."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ROWS, BLOCK_SIZE, BLOCKS = 64, 16, 16


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model's shape decides code."""

    name: str
    hidden: int
    mlp: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("llama-3.1-8b", 4096, 14336, 32, 8, 128, 128256),
        Shape("smollm2-135m", 576, 1536, 9, 3, 64, 49152),
        Shape("qwen2.5-7b", 3584, 18944, 28, 4, 128, 152064),
        Shape("llama-2-7b", 4096, 11008, 32, 32, 128, 32000),
        Shape("llama-3.1-70b", 8192, 28672, 64, 8, 128, 128256),
        Shape("embedded", 256, 640, 4, 2, 64, 1536),
    )
}
"""From the models' config.json, on Hugging Face or in backend/embedded; between them both head sizes and
groups of 1, 2, 3, 4, 7 and 8 query heads."""
FULL = ("llama-3.1-8b", "smollm2-135m")
"""Shapes that are built in every type, one of each head size; the others in bf16, which is what such models run in."""


@dataclass(frozen=True, slots=True)
class Build:
    """One compiled kernel.

    Attributes:
        registers: per thread.
        spills: bytes (sm_*) or vector registers (gfx942) spilled.
        shared: bytes of shared memory.
    """

    kernel: str
    target: str
    shape: str
    dtype: str
    variant: str
    warps: int
    registers: int
    spills: int
    shared: int

    @property
    def fits(self) -> bool:
        """Whether it spills nothing and finds its shared memory."""
        return not self.spills and self.shared <= SHARED_LIMIT[self.target]


class CompilingDriver(DriverBase):  # type: ignore[misc]  # an untyped base
    """A driver with a target but no device: enough to compile for."""

    def __init__(self, target: GPUTarget) -> None:
        super().__init__()
        self._target = target

    @classmethod
    def is_active(cls) -> bool:
        return False

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        """A number for each target: compiled kernels are kept by device."""
        return list(TARGETS.values()).index(self._target)

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is launched")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is launched")


class Compiler:
    """Makes launches compile for a target, and keeps what they compiled."""

    def __init__(self, target: str) -> None:
        self.compiled: list[Any] = []
        triton.runtime.driver.set_active(CompilingDriver(TARGETS[target]))
        run = JITFunction.run

        def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            self.compiled.append(run(kernel, *args, grid=grid, warmup=True, **kwargs))

        self._run = run
        JITFunction.run = compile_only

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        JITFunction.run = self._run


Launch = tuple[str, Callable[[], object]]


def launches(shape: Shape, dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """``(subject, (variant, launch))`` of every kernel that a model of this shape runs."""
    for subject, make in SUBJECTS.items():
        for launch in make(shape, dtype):
            yield subject, launch


def norm_launches(shape: Shape, dtype: torch.dtype) -> Iterator[Launch]:
    x, weight = torch.empty(ROWS, shape.hidden, dtype=dtype), torch.empty(shape.hidden, dtype=dtype)
    yield "", lambda: norm.rms_norm(x, weight, 1e-5)
    yield "residual", lambda: norm.add_rms_norm(x, x, weight, 1e-5)
    q, k, _ = qkv(shape, dtype)
    yield "q heads", lambda: norm.head_norm(q, weight[: shape.head_dim], 1e-5)
    yield "k heads", lambda: norm.head_norm(k, weight[: shape.head_dim], 1e-5)


def rope_launches(shape: Shape, dtype: torch.dtype) -> Iterator[Launch]:
    q, k, _ = qkv(shape, dtype)
    yield "", lambda: rope.rope(q, k, integers(ROWS), torch.empty(ROWS, shape.head_dim))


def mlp_launches(shape: Shape, dtype: torch.dtype) -> Iterator[Launch]:
    yield "", lambda: mlp.silu_and_mul(torch.empty(ROWS, 2 * shape.mlp, dtype=dtype))


def gather_launches(shape: Shape, dtype: torch.dtype) -> Iterator[Launch]:
    yield "", lambda: gather.gather_rows(torch.empty(ROWS, shape.hidden, dtype=dtype), integers(ROWS))


def kv_write_launches(shape: Shape, dtype: torch.dtype) -> Iterator[Launch]:
    _, k, v = qkv(shape, dtype)
    cache = kv_cache(shape, dtype)
    yield "", lambda: kv_write.write_kv(k, v, cache, cache, integers(ROWS))


def prepare_launches(shape: Shape, dtype: torch.dtype) -> Iterator[Launch]:
    """Tables alone: the same code whatever the model's type."""
    if dtype != torch.bfloat16:
        return
    table, ids = torch.empty(ROWS, 8192, dtype=torch.int32), integers(ROWS)
    out = prepare.StepTensors.empty(ROWS, ROWS, "cpu")
    starts = torch.zeros(ROWS + 1, dtype=torch.int32)
    yield "step", lambda: prepare.prepare_step(ids, ids, starts, table, table, BLOCK_SIZE, out)
    yield "scatter", lambda: prepare.append_blocks(table, ids, ids, ids.int())


def sample_launches(shape: Shape, dtype: torch.dtype) -> Iterator[Launch]:
    logits = torch.empty(ROWS, shape.vocab, dtype=dtype)
    yield "argmax", lambda: sample.argmax(logits)
    yield "draw", lambda: sample.sample(logits, torch.empty(ROWS), integers(ROWS), integers(ROWS))
    yield "noise alone", lambda: sample.uniform(integers(ROWS), integers(ROWS))


def attention_launches(shape: Shape, dtype: torch.dtype) -> Iterator[Launch]:
    """Decodes and prefill chunks, whole contexts and split ones, block-table rows by request and (once) by seat."""
    q, _, _ = qkv(shape, dtype)
    cache = kv_cache(shape, dtype)
    table, lens = torch.zeros(ROWS, BLOCKS, dtype=torch.int32), torch.ones(ROWS, dtype=torch.int32)
    starts = torch.zeros(ROWS + 1, dtype=torch.int32)
    for phase, longest in (("decode", 1), ("prefill", 512)):
        for splits in (1, 8):
            for slots in (None, integers(ROWS)) if (shape.name, dtype) == (FULL[0], torch.bfloat16) else (None,):
                batch = attention.RaggedBatch(starts, lens, table, longest, 8192, slots)
                words = (phase, "split" if splits > 1 else "", "seats" if slots is not None else "")
                yield " ".join(filter(None, words)), launch_attention(q, cache, batch, splits)


def launch_attention(q: Tensor, cache: Tensor, batch: attention.RaggedBatch, splits: int) -> Callable[[], object]:
    return lambda: attention.attention(q, cache, cache, batch, 0.1, splits)


SUBJECTS: dict[str, Callable[[Shape, torch.dtype], Iterator[Launch]]] = {
    "norm": norm_launches,
    "rope": rope_launches,
    "mlp": mlp_launches,
    "gather": gather_launches,
    "kv_write": kv_write_launches,
    "prepare": prepare_launches,
    "sample": sample_launches,
    "attention": attention_launches,
}


def integers(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)


def kv_cache(shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.empty(BLOCKS, BLOCK_SIZE, shape.kv_heads, shape.head_dim, dtype=dtype)


def qkv(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Views of q, k and v into rows of QKV, as the model passes them."""
    heads = (shape.q_heads, shape.kv_heads, shape.kv_heads)
    rows = torch.empty(ROWS, sum(heads), shape.head_dim, dtype=dtype)
    q, k, v = torch.split(rows, list(heads), dim=1)
    return q, k, v


def builds(target: str, wanted: argparse.Namespace) -> Iterator[Build]:
    """Every kernel that is wanted, compiled for a target."""
    seen: set[str] = set()
    with Compiler(target) as compiler:
        for shape, dtype in models(wanted):
            for subject, (variant, launch) in launches(SHAPES[shape], DTYPES[dtype]):
                if subject in wanted.kernel:
                    compiler.compiled.clear()
                    launch()
                    for kernel in compiler.compiled:
                        if kernel.hash not in seen:
                            seen.add(kernel.hash)
                            yield measured(kernel, target, shape, dtype, variant)


def models(wanted: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Shapes and types: one of each when it must be quick."""
    for shape in FULL[:1] if wanted.quick else SHAPES:
        for dtype in wanted.dtype:
            if dtype == "bf16" or (shape in FULL and not wanted.quick):
                yield shape, dtype


def measured(kernel: Any, target: str, shape: str, dtype: str, variant: str) -> Build:
    """The resources of a compiled kernel."""
    registers, spills = (gcn_usage if target.startswith("gfx") else ptx_usage)(kernel)
    name = kernel.metadata.name.strip("_")
    return Build(
        name, target, shape, dtype, variant, kernel.metadata.num_warps, registers, spills, kernel.metadata.shared
    )


def ptx_usage(kernel: Any) -> tuple[int, int]:
    """Registers a thread and bytes spilled, as ``ptxas -v`` of Triton's package reports them."""
    arch = kernel.metadata.target.arch
    ptxas = triton.knobs.nvidia.ptxas_blackwell if arch >= 100 else triton.knobs.nvidia.ptxas
    gpu = f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source:
        source.write(kernel.asm["ptx"])
        source.flush()
        # Triton's own options (make_cubin in triton/backends/nvidia/compiler.py): registers depend on them
        command = [ptxas.path, "-lineinfo", "-v", "--regAllocOptLevel=2", f"--gpu-name={gpu}", source.name]
        report = subprocess.run([*command, "-o", os.devnull], capture_output=True, text=True, check=True).stderr
    return found(r"Used (\d+) registers", report), found(r"(\d+) bytes spill stores", report)


def gcn_usage(kernel: Any) -> tuple[int, int]:
    """Vector registers a thread and how many of them were spilled, from the code object's metadata."""
    assembly = kernel.asm["amdgcn"]
    return found(r"\.vgpr_count:\s+(\d+)", assembly), found(r"\.vgpr_spill_count:\s+(\d+)", assembly)


def found(pattern: str, report: str) -> int:
    match = re.search(pattern, report)
    if match is None:
        raise RuntimeError(f"no {pattern!r} in the compiler's report:\n{report}")
    return int(match.group(1))


def table(rows: list[Build]) -> str:
    """Most registers of each kernel by target, in Markdown: the table of docs/kernels.md."""
    names = list(dict.fromkeys(row.kernel for row in rows))
    targets = list(dict.fromkeys(row.target for row in rows))
    lines = ["| kernel | builds | " + " | ".join(targets) + " | spills |", "|---" * (len(targets) + 3) + "|"]
    for name in names:
        own = [row for row in rows if row.kernel == name]
        most = [str(max((row.registers for row in own if row.target == target), default=0)) for target in targets]
        lines.append(f"| `{name}` | {len(own)} | {' | '.join(most)} | {sum(row.spills for row in own)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the builds; exit 1 when one does not fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one model, bf16 alone")
    for name, known in (("target", TARGETS), ("kernel", SUBJECTS), ("dtype", DTYPES)):
        parser.add_argument(f"--{name}", action="append", choices=list(known), help="may be repeated; default: all")
    parser.add_argument("--table", action="store_true", help="print the Markdown table of the documentation")
    args = parser.parse_args()
    if INTERPRETED:
        sys.exit("TRITON_INTERPRET=1: the interpreter compiles nothing; unset it")
    args.kernel, args.dtype = args.kernel or list(SUBJECTS), args.dtype or list(DTYPES)
    rows = []
    for target in args.target or TARGETS:
        for row in builds(target, args):
            rows.append(row)
            print(*asdict(row).values(), file=sys.stderr)
    misfits = [asdict(row) for row in rows if not row.fits]
    report = {
        "benchmark": "kernel_builds", "triton": triton.__version__, "builds": len(rows), "misfits": misfits,
        "figures": [asdict(row) for row in rows],
    }  # fmt: skip
    print(table(rows) if args.table else json.dumps(report, indent=1))
    sys.exit(1 if misfits else 0)


if __name__ == "__main__":
    main()
