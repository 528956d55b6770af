"""Part 2 of `gpu.py`: what attention achieves: decodes in bytes a second, prefill in FLOP/s, against torch's own.

Shapes are those of one layer of Llama-3.1-8B in bfloat16, blocks of 16 scattered over the cache. Seconds are the
device's, the L2 cache emptied before each repetition.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from gpu_bench import Bench, sentence
from gpu_kernels import ragged
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from backend.kernels.attention import attention, attention_splits
from backend.kernels.tiles import processors

Q_HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
REQUESTS, CONTEXTS = (1, 8, 64, 256), (512, 4096, 32768)
PREFILLS = ((1, 4096, 0), (4, 2048, 0), (16, 512, 0), (1, 16384, 0), (1, 2048, 6144))
"""Requests, tokens of each, context before them (a later chunk of a long prompt)."""
SHARE_OF_MEMORY = 0.3
"""Of the free memory, for K and V of a case; torch's contestants need no copy of them."""
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
FLEX = (1, 4096)
"""flex_attention is compiled for a shape, which takes long: one will do, and only if so many seconds are left."""
FLEX_S = 25


def run(bench: Bench) -> None:
    dtype = torch.bfloat16 if bench.gpu else torch.float32
    heads = bench.of((Q_HEADS, KV_HEADS, HEAD_DIM), (Q_HEADS, KV_HEADS, HEAD_DIM), (4, 2, 16))
    bench.note("shape", {
        "dtype": str(dtype).removeprefix("torch."), "query_heads": heads[0], "kv_heads": heads[1], "head_dim": heads[2],
        "block_size": BLOCK_SIZE, "copy_bytes_per_s": bench.bandwidth,
    })  # fmt: skip
    every = [(requests, context) for requests in REQUESTS for context in CONTEXTS]
    decodes = bench.of(every, every[::2], [(1, 40), (3, 20)])
    prefills = bench.of(PREFILLS, PREFILLS[:2], ((1, 20, 0), (2, 8, 10)))
    at = Attention(bench, dtype, heads)
    bench.each("decode", decodes, lambda case: at.decode(*case))
    bench.each("prefill", prefills, lambda case: at.prefill(*case))
    if bench.dry or bench.left_s() > FLEX_S:
        bench.each("flex_attention", bench.of([FLEX], [], [(1, 20)]), lambda case: at.flex(*case))


class Attention:
    """One layer's attention, in one type."""

    def __init__(self, bench: Bench, dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
        self._bench = bench
        self._dtype = dtype
        self._q_heads, self._kv_heads, self._size = heads
        self._scale = self._size**-0.5

    def decode(self, requests: int, context: int) -> dict[str, Any]:
        """A token of each request over its context; the bytes are those of the K and V that it must read."""
        row: dict[str, Any] = {"requests": requests, "context": context}
        count = 2 * requests * context * self._kv_heads * self._size * self._dtype.itemsize
        if count > SHARE_OF_MEMORY * self._bench.free_bytes():
            return {**row, "skipped": f"{count} bytes of K and V do not fit"}
        ours_s, torch_s = self._decode_seconds(requests, context)
        copy = self._bench.copy(count)
        programs = requests * self._kv_heads
        return {
            **row, "bytes": count, "seconds": ours_s, "bytes_per_s": count / ours_s,
            "splits": attention_splits(programs, context, processors(self._bench.device)),
            "copy_bytes_per_s": copy["bytes_per_s"], "share_of_copy": count / ours_s / copy["bytes_per_s"],
            "torch_sdpa_dense_s": torch_s,
        }  # fmt: skip

    def _decode_seconds(self, requests: int, context: int) -> tuple[float, float]:
        """Ours, and torch's over contexts that lie end to end."""
        batch, blocks = ragged([(1, context - 1)] * requests, BLOCK_SIZE, self._bench.device)
        q, keys, values = self._q(requests), self._cache(blocks), self._cache(blocks)
        return (
            self._bench.seconds(lambda: attention(q, keys, values, batch, self._scale), flush=True),
            self._bench.seconds(lambda: self._dense_decode(q, keys, values, requests, context), flush=True),
        )

    def prefill(self, requests: int, tokens: int, before: int) -> dict[str, Any]:
        """Chunks of equal length; FLOPs are those of the causal triangle, 4 x D a pair of query and key and head."""
        batch, blocks = ragged([(tokens, before)] * requests, BLOCK_SIZE, self._bench.device)
        q, keys, values = self._q(requests * tokens), self._cache(blocks), self._cache(blocks)
        pairs = requests * (tokens * before + tokens * (tokens + 1) // 2)
        flops = 4 * self._q_heads * self._size * pairs
        ours_s = self._bench.seconds(lambda: attention(q, keys, values, batch, self._scale), flush=True)
        theirs = self._torch_prefill(requests, tokens) if not before else {}
        rates = {name: flops / taken if isinstance(taken, float) else taken for name, taken in theirs.items()}
        return {
            "requests": requests, "tokens": tokens, "context_before": before, "flops": flops, "seconds": ours_s,
            "flops_per_s": flops / ours_s, "torch_flops_per_s": rates,
        }  # fmt: skip

    def _q(self, rows: int) -> Tensor:
        return torch.randn((rows, self._q_heads, self._size), dtype=self._dtype, device=self._bench.device)

    def _cache(self, blocks: int) -> Tensor:
        shape = (blocks, BLOCK_SIZE, self._kv_heads, self._size)
        return torch.empty(shape, dtype=self._dtype, device=self._bench.device).normal_()

    def _dense_decode(self, q: Tensor, keys: Tensor, values: Tensor, requests: int, context: int) -> Tensor:
        """Over the same bytes by torch, as if they were no pages: contexts end to end."""
        k, v = (
            cache.view(-1, self._kv_heads, self._size)[: requests * context]
            .view(requests, context, self._kv_heads, self._size)
            .transpose(1, 2)
            for cache in (keys, values)
        )
        return F.scaled_dot_product_attention(q[:, :, None], k, v, scale=self._scale, enable_gqa=True)

    def _torch_prefill(self, requests: int, tokens: int) -> dict[str, float | str]:
        """Seconds of torch's implementations, or why there is none."""
        q, k, v = (self._dense(requests, tokens, heads) for heads in (self._q_heads, self._kv_heads, self._kv_heads))
        found: dict[str, float | str] = {}
        wide = [x.repeat_interleave(self._q_heads // self._kv_heads, dim=1) for x in (k, v)]
        for backend in BACKENDS:
            grouped = backend is not SDPBackend.EFFICIENT_ATTENTION  # it takes no grouped heads
            keys, values = (k, v) if grouped else wide
            name = f"sdpa, {backend.name.lower()}"
            found[name] = self._tried(lambda b=backend, k=keys, v=values: self._sdpa(q, k, v, b))
        found["sdpa, its own choice"] = self._tried(lambda: self._sdpa(q, k, v, None))
        found["varlen_attn (FlashAttention)"] = self._tried(self._varlen(requests, tokens))
        return found

    def _dense(self, requests: int, tokens: int, heads: int) -> Tensor:
        shape = (requests, tokens, heads, self._size)
        return torch.randn(shape, dtype=self._dtype, device=self._bench.device).transpose(1, 2)

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend | None) -> Tensor:
        grouped = q.shape[1] != k.shape[1]
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self._scale, enable_gqa=grouped)

    def _varlen(self, requests: int, tokens: int) -> Callable[[], object]:
        def attend() -> object:
            from torch.nn.attention.varlen import varlen_attn

            return varlen_attn(
                q, k, v, starts, starts, tokens, tokens, scale=self._scale, window_size=(-1, 0), enable_gqa=True
            )  # fmt: skip

        q, k, v = (
            self._dense(requests, tokens, heads).transpose(1, 2).flatten(0, 1)
            for heads in (self._q_heads, self._kv_heads, self._kv_heads)
        )
        starts = torch.arange(requests + 1, dtype=torch.int32, device=self._bench.device) * tokens
        return attend

    def flex(self, requests: int, tokens: int) -> dict[str, Any]:
        """Prompts by flex_attention, compiled where there is a GPU."""
        q, k, v = (self._dense(requests, tokens, heads) for heads in (self._q_heads, self._kv_heads, self._kv_heads))
        flops = 4 * self._q_heads * self._size * requests * tokens * (tokens + 1) // 2
        taken = self._tried(self._flex(q, k, v, tokens))
        rate = flops / taken if isinstance(taken, float) else taken
        return {"requests": requests, "tokens": tokens, "flops": flops, "flops_per_s": rate}

    def _flex(self, q: Tensor, k: Tensor, v: Tensor, tokens: int) -> Callable[[], object]:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def causal(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return query >= key

        mask = create_block_mask(causal, None, None, tokens, tokens, device=self._bench.device)
        compiled: Any = torch.compile(flex_attention) if self._bench.gpu else flex_attention
        return lambda: compiled(q, k, v, block_mask=mask, scale=self._scale, enable_gqa=True)

    def _tried(self, attend: Callable[[], object]) -> float | str:
        try:
            return self._bench.seconds(attend, flush=True)
        except Exception as error:  # not every build and card has every one of them
            return f"not available: {sentence(error)}"
