"""The model's steps on the CPU against their matrix products alone, one thread. JSON.

    python benchmarks/model_step.py [--dtype float32] [--run]

A random Llama of 63 M parameters (hidden 512, MLP 2048, 8 layers, 8 heads, 2 KV heads of 64, vocabulary 32,000,
untied). `decode`: 32 requests with contexts around 200. `mixed`: 24 such decodes and prompt chunks of 256 and 128
tokens. `run`: all steps of 32 requests (16 to 256 prompt and 8 to 128 output tokens, budget 512), attention over
scattered blocks of 16.

The floor is `F.linear` of the same shapes in the same dtype, with Q, K, V and gate, up fused. Step and floor alternate;
times are the thread's CPU time, which other load on the machine inflates least, and `ratio` is floor / step (1 would be
a model that costs nothing but its products; more, one that multiplies faster than `F.linear` does).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from transformers import LlamaConfig

from backend.kv_cache import KvCache
from backend.model import Model
from backend.model_config import ModelConfig
from backend.ops import FlatAttention, StepInputs, make_ops
from backend.weights import Weights, random_weights
from scheduler.batch import BatchRequest, flat_batch

BLOCK_SIZE, LONGEST, REQUESTS, BUDGET = 16, 512, 32, 512
ROUNDS = 9


class Bench:
    """The model, its floor, and requests of random tokens in scattered blocks."""

    def __init__(self, dtype: torch.dtype) -> None:
        facts = LlamaConfig(
            hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
            head_dim=64, vocab_size=32000,
        )  # fmt: skip
        config = ModelConfig.of(facts)
        self.weights = random_weights(config, dtype, "cpu")
        self.model = Model(config, self.weights, make_ops("torch"), max_positions=LONGEST)
        per_request = LONGEST // BLOCK_SIZE
        self.cache = KvCache(config, REQUESTS * per_request + 1, BLOCK_SIZE, dtype, "cpu")
        self.generator = np.random.Generator(np.random.PCG64(0))
        ids = self.generator.permutation(np.arange(1, REQUESTS * per_request + 1))
        self.tables = ids.reshape(REQUESTS, per_request).tolist()
        self.tokens = self.generator.integers(0, config.vocab_size, (REQUESTS, LONGEST)).tolist()

    def inputs(self, chunks: dict[int, tuple[int, int]]) -> StepInputs:
        """A step: request -> (computed tokens, new tokens)."""
        batch = flat_batch(
            [BatchRequest(str(i), self.tokens[i], done, new, self.tables[i]) for i, (done, new) in chunks.items()],
            BLOCK_SIZE,
        )
        starts = batch.query_start_loc[: len(chunks) + 1]
        attention = FlatAttention(
            torch.from_numpy(starts), torch.from_numpy(batch.seq_lens), torch.from_numpy(batch.block_table),
            int(np.diff(starts).max()), int(batch.seq_lens.max()), batch,
        )  # fmt: skip
        arrays = (batch.input_ids, batch.positions, batch.slot_mapping, batch.logits_indices)
        ids, positions, slots, logits_rows = map(torch.from_numpy, arrays)
        return StepInputs(ids, positions, slots, logits_rows, attention)

    def step(self, inputs: StepInputs) -> tuple[float, float]:
        """CPU seconds of the step and of its floor."""
        rows, logits_rows = len(inputs.input_ids), len(inputs.logits_indices)
        hidden = torch.randn(rows, self.weights.embed.shape[1]).to(self.weights.embed.dtype)
        mlp = torch.randn(rows, self.weights.layers[0].down.shape[1]).to(hidden.dtype)
        began = time.thread_time()
        self.model.forward(inputs, self.cache)
        between = time.thread_time()
        products(self.weights, hidden, mlp, logits_rows)
        return between - began, time.thread_time() - between


@torch.inference_mode()
def products(weights: Weights, hidden: torch.Tensor, mlp: torch.Tensor, logits_rows: int) -> None:
    """The matrix products of a step and nothing else."""
    for layer in weights.layers:
        F.linear(hidden, layer.qkv)
        F.linear(hidden, layer.o)
        F.linear(hidden, layer.gate_up)
        F.linear(mlp, layer.down)
    F.linear(hidden[:logits_rows], weights.lm_head)


def decode(bench: Bench) -> dict[int, tuple[int, int]]:
    """32 decodes at contexts of 24 to 376."""
    return {i: (int(context), 1) for i, context in enumerate(bench.generator.integers(24, 377, REQUESTS))}


def mixed(bench: Bench) -> dict[int, tuple[int, int]]:
    """24 decodes, the rest of a prompt of 192 and a whole prompt of 256."""
    chunks = dict(list(decode(bench).items())[:24])
    return chunks | {24: (64, 128), 25: (0, 256)}


def measure_step(bench: Bench, chunks: dict[int, tuple[int, int]]) -> dict[str, float]:
    """Milliseconds of a step and of its floor (medians), and the median of their ratios."""
    inputs = bench.inputs(chunks)
    bench.step(inputs)
    times = [bench.step(inputs) for _ in range(ROUNDS)]
    return {
        "rows": len(inputs.input_ids),
        "step_ms": round(1000 * statistics.median(step for step, _ in times), 2),
        "products_ms": round(1000 * statistics.median(floor for _, floor in times), 2),
        "ratio": round(statistics.median(floor / step for step, floor in times), 3),
    }


def measure_run(bench: Bench) -> dict[str, float]:
    """Seconds of all steps of 32 requests that arrive at once, and of their floors; chunked prefill."""
    prompts = bench.generator.integers(16, 257, REQUESTS)
    ends = prompts + bench.generator.integers(8, 129, REQUESTS) - 1
    done = np.zeros(REQUESTS, dtype=np.int64)
    total_s = floor_s = 0.0
    outputs = 0
    while (done < ends).any():
        left, chunks = BUDGET, {}
        for index in np.flatnonzero(done < ends).tolist():
            new = min(int(prompts[index] - done[index]), left) if done[index] < prompts[index] else min(1, left)
            if new:
                chunks[index] = (int(done[index]), new)
                left -= new
        step_s, products_s = bench.step(bench.inputs(chunks))
        total_s, floor_s = total_s + step_s, floor_s + products_s
        for index, (_, new) in chunks.items():
            done[index] += new
            outputs += int(done[index] >= prompts[index])
    return {
        "outputs": outputs,
        "steps_s": round(total_s, 3),
        "products_s": round(floor_s, 3),
        "ratio": round(floor_s / total_s, 3),
        "output_tokens_per_s": round(outputs / total_s, 1),
    }


def main() -> None:
    """Print the figures of each dtype."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16", "float64", "float16"])
    parser.add_argument("--run", action="store_true", help="also a whole run of 32 requests (a minute or more)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, object]] = {}
    for name in options.dtype or ["float32", "bfloat16"]:
        bench = Bench(getattr(torch, name))
        found[name] = {
            "computed_in": str(bench.model.dtype).removeprefix("torch."),
            "decode": measure_step(bench, decode(bench)),
            "mixed": measure_step(bench, mixed(bench)),
        }
        if options.run:
            found[name]["run"] = measure_run(bench)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
