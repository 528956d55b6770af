"""Part 1 of `gpu.py`: every kernel against its torch reference on the device, in every type.

Shapes are those of Llama-3.1-8B. An error is the largest of ``|kernel - reference| / (1 + |reference|)``; the
references add up in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from gpu_bench import Bench
from torch import Tensor

from backend.kernels import gather, kv_write, mlp, norm, prepare, reference, rope, sample
from backend.kernels.attention import RaggedBatch, attention
from scheduler.batch import NO_SLOT

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 5e-5}
"""Of that error. The halves': two units in the last place; float32's: sums over thousands in another order."""
DTYPES = tuple(TOLERANCE)

Pairs = list[tuple[Tensor, Tensor]]
"""What the kernel made, what the reference made."""


def run(bench: Bench) -> None:
    """Raises AssertionError when a kernel differs, and whatever a launch raises."""
    cases = Cases(bench)
    bench.note("tolerance", {_name(dtype): bound for dtype, bound in TOLERANCE.items()})
    rows = bench.each("integers", list(cases.integers()), lambda case: compare(case[0], None, case[1]()))
    for dtype in DTYPES:
        rows += bench.each(
            _name(dtype), list(cases.floats(dtype)), lambda case, t=dtype: compare(case[0], t, case[1]())
        )
    wrong = [f"{row['kernel']} in {row['dtype']}" for row in rows if row.get("passed") is False]
    if wrong:
        raise AssertionError(f"{len(wrong)} kernels differ from their references: {', '.join(wrong)}")


def compare(kernel: str, dtype: torch.dtype | None, pairs: Pairs) -> dict[str, Any]:
    """One kernel's row; integers must be equal."""
    found = max(_error(actual, expected) for actual, expected in pairs)
    bound = 0.0 if dtype is None else TOLERANCE[dtype]
    shapes = [list(actual.shape) for actual, _ in pairs]
    return {
        "kernel": kernel, "dtype": _name(dtype), "shapes": shapes, "error": found, "tolerance": bound,
        "passed": found <= bound,
    }  # fmt: skip


def _error(actual: Tensor, expected: Tensor) -> float:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    wide, other = actual.double(), expected.double()
    return float(((wide - other).abs() / (1 + other.abs())).nan_to_num(float("inf")).max())


def _name(dtype: torch.dtype | None) -> str:
    return "integers" if dtype is None else str(dtype).removeprefix("torch.")


class Cases:
    """The cases, by name; each is computed when called."""

    def __init__(self, bench: Bench) -> None:
        self._device = bench.device
        self._small = bench.dry
        self.rows = 5 if bench.dry else 512
        self.hidden = 48 if bench.dry else 4096
        self.heads = (4, 2, 16) if bench.dry else (32, 8, 128)
        self.vocab = 5000 if bench.dry else 128256

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, device=self._device).to(dtype)

    def integers(self) -> Iterator[tuple[str, Callable[[], Pairs]]]:
        """Kernels whose results are whole numbers."""
        yield "prepare_step", self.prepare_step
        yield "append_blocks", self.append_blocks
        yield "store_tokens", self.store_tokens
        yield "uniform", self.uniform

    def floats(self, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Pairs]]]:
        """Kernels on numbers of a type."""
        plain = (
            self.rms_norm, self.add_rms_norm, self.head_norm, self.rope, self.silu_and_mul, self.write_kv,
            self.gather_rows, self.argmax, self.sample,
        )  # fmt: skip
        for case in plain:
            yield case.__name__, partial(case, dtype)
        for name, (chunks, splits, padding) in self._steps().items():
            yield f"attention, {name}", partial(self.attention, dtype, chunks, splits, padding)

    def _steps(self) -> dict[str, tuple[list[tuple[int, int]], int, int]]:
        """Chunks (tokens, context before), splits and padding rows."""
        if self._small:
            return {"decodes, padding": ([(1, 9), (1, 3)], 1, 2), "mixed, split": ([(3, 0), (1, 70)], 2, 0)}
        decodes = [(1, 100 + 37 * i) for i in range(31)]
        return {
            "decodes, padding": (decodes, 1, 5),
            "decodes, split": ([*decodes[:4], (1, 3000)], 8, 3),
            "prefill": ([(300, 0), (129, 500)], 1, 0),
            "mixed, split": ([*decodes[:9], (200, 77), (33, 0)], 4, 7),
        }

    # -- whole numbers ---------------------------------------------------------------------------------------------

    def prepare_step(self) -> Pairs:
        requests, block_size = (3, 4) if self._small else (64, 16)
        slots = torch.randperm(2 * requests, device=self._device)[:requests].int()
        computed = torch.randint(0, 60, (requests,), device=self._device, dtype=torch.int32)
        lens = torch.randint(1, 9, (requests,), device=self._device)
        starts = torch.nn.functional.pad(lens.cumsum(0), (1, 0)).int()
        tokens = torch.randint(0, 1000, (2 * requests, 128), device=self._device, dtype=torch.int32)
        blocks = torch.randint(1, 1000, (2 * requests, 128 // block_size), device=self._device, dtype=torch.int32)
        total = int(starts[-1]) + 3
        made, wanted = (prepare.StepTensors.empty(total, requests, self._device) for _ in range(2))
        prepare.prepare_step(slots, computed, starts, tokens, blocks, block_size, made)
        reference.prepare_step(slots, computed, starts, tokens, blocks, block_size, wanted)
        return [(getattr(made, name), getattr(wanted, name)) for name in prepare.StepTensors.__slots__]

    def append_blocks(self) -> Pairs:
        return self._scattered(prepare.append_blocks, torch.int32)

    def store_tokens(self) -> Pairs:
        return self._scattered(prepare.store_tokens, torch.int64)

    def _scattered(self, scatter: Callable[[Tensor, Tensor, Tensor, Tensor], None], dtype: torch.dtype) -> Pairs:
        count = 20 if self._small else 600
        rows = torch.arange(count, device=self._device, dtype=torch.int32)
        cols = torch.randint(-1, 50, (count,), device=self._device, dtype=torch.int32)
        values = torch.arange(count, device=self._device).to(dtype) + 7
        made = torch.zeros((count, 50), dtype=torch.int32, device=self._device)
        wanted = made.clone()
        scatter(made, rows, cols, values)
        reference.scatter(wanted, rows, cols, values)
        return [(made, wanted)]

    def uniform(self) -> Pairs:
        """Against the numpy Philox of the CPU's path."""
        from backend import philox

        seeds = torch.randint(-(2**62), 2**62, (self.rows,), device=self._device)
        positions = torch.randint(0, 2**31, (self.rows,), device=self._device)
        wanted = philox.uniform(seeds.cpu().numpy().astype("uint64"), positions.cpu().numpy().astype("uint64"))
        return [(sample.uniform(seeds, positions), torch.from_numpy(wanted).to(self._device, torch.float32))]

    # -- numbers of a type -----------------------------------------------------------------------------------------

    def rms_norm(self, dtype: torch.dtype) -> Pairs:
        x, weight = self.random(self.rows, self.hidden, dtype=dtype), self.random(self.hidden, dtype=dtype)
        return [(norm.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))]

    def add_rms_norm(self, dtype: torch.dtype) -> Pairs:
        x, residual = (self.random(self.rows, self.hidden, dtype=dtype) for _ in range(2))
        weight = self.random(self.hidden, dtype=dtype)
        wanted = reference.add_rms_norm(x, residual, weight, 1e-5)
        return list(zip(norm.add_rms_norm(x, residual, weight, 1e-5), wanted, strict=True))

    def head_norm(self, dtype: torch.dtype) -> Pairs:
        q, _, _ = self._qkv(dtype)
        weight = self.random(self.heads[2], dtype=dtype)
        wanted = reference.rms_norm(q, weight, 1e-6)
        return [(norm.head_norm(q, weight, 1e-6), wanted)]

    def rope(self, dtype: torch.dtype) -> Pairs:
        q, k, _ = self._qkv(dtype)
        positions = torch.randint(0, 500, (len(q),), device=self._device)
        table = self.random(500, self.heads[2])
        wanted = reference.rope(q, k, positions, table)
        rope.rope(q, k, positions, table)
        return [(q, wanted[0]), (k, wanted[1])]

    def silu_and_mul(self, dtype: torch.dtype) -> Pairs:
        gate_up = self.random(self.rows, 2 * self.hidden, dtype=dtype)
        return [(mlp.silu_and_mul(gate_up), reference.silu_and_mul(gate_up))]

    def write_kv(self, dtype: torch.dtype) -> Pairs:
        _, k, v = self._qkv(dtype)
        blocks = -(-2 * len(k) // 16)
        made = [torch.zeros((blocks, 16, *k.shape[1:]), dtype=dtype, device=self._device) for _ in range(2)]
        wanted = [cache.clone() for cache in made]
        slots = torch.randperm(blocks * 16, device=self._device)[: len(k)]
        slots[::5] = NO_SLOT
        kv_write.write_kv(k, v, made[0], made[1], slots)
        reference.write_kv(k, v, wanted[0], wanted[1], slots)
        return list(zip(made, wanted, strict=True))

    def gather_rows(self, dtype: torch.dtype) -> Pairs:
        table = self.random(self.rows, self.hidden, dtype=dtype)
        indices = torch.randint(0, self.rows, (3 * self.rows,), device=self._device)
        return [(gather.gather_rows(table, indices), table[indices])]

    def argmax(self, dtype: torch.dtype) -> Pairs:
        logits = self.random(self.rows // 4 + 1, self.vocab, dtype=dtype)
        made, wanted = sample.argmax(logits), logits.argmax(-1)
        # equal logits are common in half types, and torch does not promise the first of them
        return [(logits.gather(1, made[:, None]), logits.gather(1, wanted[:, None]))]

    def sample(self, dtype: torch.dtype) -> Pairs:
        """Not the tokens: the number drawn with must lie in each token's interval of cumulative probability."""
        rows = self.rows // 4 + 1
        logits, temperature = self.random(rows, self.vocab, dtype=dtype), torch.full((rows,), 0.8, device=self._device)
        seeds, positions = torch.arange(rows, device=self._device), torch.arange(rows, device=self._device) + 3
        tokens = sample.sample(logits, temperature, seeds, positions)[:, None]
        cdf, drawn = reference.cumulative(logits, temperature), sample.uniform(seeds, positions).double()[:, None]
        upper = cdf.gather(1, tokens)
        lower = torch.where(tokens > 0, cdf.gather(1, (tokens - 1).clamp(min=0)), 0.0)
        return [(drawn.clamp(lower, upper).float(), drawn.float())]

    def attention(self, dtype: torch.dtype, chunks: Sequence[tuple[int, int]], splits: int, padding: int) -> Pairs:
        batch, blocks = ragged(chunks, 4 if self._small else 16, self._device)
        q_heads, kv_heads, size = self.heads
        rows = sum(tokens for tokens, _ in chunks) + padding
        q = self.random(rows, q_heads + 2 * kv_heads, size, dtype=dtype)[:, :q_heads]
        shape = (blocks, 4 if self._small else 16, kv_heads, size)
        keys, values = (self.random(*shape, dtype=dtype) for _ in range(2))
        made = attention(q, keys, values, batch, size**-0.5, splits)
        return [(made, reference.attention(q, keys, values, batch, size**-0.5))]

    def _qkv(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        q_heads, kv_heads, size = self.heads
        qkv = self.random(self.rows, q_heads + 2 * kv_heads, size, dtype=dtype)
        q, k, v = torch.split(qkv, [q_heads, kv_heads, kv_heads], dim=1)
        return q, k, v


def ragged(chunks: Sequence[tuple[int, int]], block_size: int, device: torch.device) -> tuple[RaggedBatch, int]:
    """Requests that compute n tokens after c ones, ``(n, c)`` each, their blocks scattered; and how many blocks."""
    lens = [tokens + context for tokens, context in chunks]
    columns = -(-max(lens) // block_size)
    blocks = 1 + len(chunks) * columns
    starts = torch.tensor([0, *(tokens for tokens, _ in chunks)]).cumsum(0)
    table = (torch.randperm(blocks - 1) + 1).view(len(chunks), columns)
    batch = RaggedBatch(
        starts.to(device, torch.int32), torch.tensor(lens, dtype=torch.int32, device=device),
        table.to(device, torch.int32), max(tokens for tokens, _ in chunks), max(lens),
    )  # fmt: skip
    return batch, blocks
