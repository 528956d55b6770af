"""A small folder of operator tables, made from closed forms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

LAYERS = ("layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
STEPS = ("embedding", "final_layernorm")
TOKENS = (1, 16, 64, 256)
SEQUENCES = (1, 8, 64)
CHUNKS, BEFORES, DECODES, CONTEXTS = (16, 64, 256), (0, 128, 512, 2048), (1, 4, 16, 64), (128, 512, 2048)

AttentionUs = Callable[[int, int, int, int], float]


def attention_us(chunk: int, before: int, decodes: int, context: int) -> float:
    """A line in the number of pairs of the prefill and of positions that the decodes read."""
    pairs = chunk * before + chunk * (chunk + 1) / 2
    return 5 + pairs / 500 + decodes * (context + 1) / 200


def write_profile(folder: Path, *, attention: AttentionUs = attention_us, mixed_most: int = 64) -> Path:
    """Tables of Llama-3.1-8B on an RTX 4090: operators take 10 us and 0.1 us a token, whatever they are."""
    folder.mkdir(exist_ok=True)
    meta = "gpu: NVIDIA GeForce RTX 4090\nmodel: meta-llama/Llama-3.1-8B\ntp_degrees: [1]\n"
    (folder / "profile_meta.yaml").write_text(meta)
    dense = [f"{name},{n},{10 + 0.1 * n}" for name in (*LAYERS, *STEPS) for n in TOKENS]
    _write(folder / "profile_dense.csv", "layer,tokens,time_us", dense)
    heads = [f"{name},{n},{20 + 0.5 * n}" for name in ("lm_head", "sampler") for n in SEQUENCES]
    _write(folder / "profile_per_sequence.csv", "layer,sequences,time_us", heads)
    cells = [(0, 0, n, x) for n in DECODES for x in CONTEXTS]
    cells += [(c, b, 0, 0) for c in CHUNKS for b in BEFORES]
    cells += [(c, b, n, x) for c in CHUNKS for b in BEFORES for n in DECODES if n <= mixed_most for x in CONTEXTS]
    rows = [f"{','.join(map(str, cell))},{attention(*cell)}" for cell in cells]
    _write(folder / "profile_attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", rows)
    return folder


def _write(path: Path, header: str, rows: list[str]) -> None:
    path.write_text("\n".join([header, *rows]) + "\n")
