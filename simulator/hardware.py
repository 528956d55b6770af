"""Hardware sheets: what one accelerator can do at best, how near kernels come to it, and where each figure is from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from scheduler.errors import ConfigError, unknown_name

GIB = 2**30
MIB = 2**20

VIDUR_A100 = (
    "products and memory-bound operators fitted to every second token count of Vidur's A100 table and to published "
    "A100 times; attention to three published times, its shape as on an RTX 4090 (docs/cost-models.md)"
)
VLLM_4090 = "fitted to every second point of operator times profiled with vLLM 0.19 on this card (docs/cost-models.md)"
GENERIC = "generic: between the fits of A100 and RTX 4090; not measured on this device"


@dataclass(frozen=True)
class Efficiency:
    """How near kernels come to the device's peaks; the formulas that use it stand in `simulator.costs.roofline`.

    Attributes:
        source: what it was fitted to.
        measured_tokens: most rows a step of that data; 0 where nothing was measured.
        measured_positions, measured_context: most KV positions a step and a request of that data; 0 likewise.
        kernel_s: least time of a matrix product, seconds.
        bandwidth: fraction of the memory bandwidth that weights stream at.
        compute: fraction of the peak FLOP/s of a matrix product with full waves.
        tile_rows, tile_cols: smallest output tile of a thread block.
        tile_doublings: a product may choose tiles of so many doublings more, both sides together; 0: this tile only.
        tile_edge: rows (or columns) of a tile whose loads of operands take as long as their arithmetic.
        wave: 0 ignores that the last wave of tiles is not full, 1 charges it whole.
        tile_overhead: start and end of a tile, as columns of the inner dimension.
        blend: exponent p of ``(memory_s**p + compute_s**p) ** (1/p)``; large is the plain maximum.
        vector_s: start of a memory-bound kernel (norm, rotation, activation), seconds.
        vector_number_s: what its block takes for each number of a row, seconds.
        vector_bandwidth: fraction of the memory bandwidth those reach.
        l2_bandwidth: the same for what is in the L2 cache; 0: the cache is not told apart.
        vector_blend: exponent, as `blend`, of least time and memory traffic.
        decode_s: least time of decode attention, seconds a layer.
        decode_tile_s: least time of a thread block (one request, one KV head) with other blocks beside it, seconds.
        decode_block_s: time of a thread block beside its reads, seconds.
        kv_bandwidth: fraction of the memory bandwidth that KV is read at.
        attention_s: start of attention with prefills, seconds a layer.
        attention_compute: fraction of the peak FLOP/s of prefill attention.
        query_tile: query rows a thread block of prefill attention.
        packs_group: the query heads of one KV head share a tile (FlashAttention 3), else a tile each (2).
        key_tile: keys that such a block loads at once; it computes whole tiles of them.
        tile_keys: overhead of a block, as keys.
        empty_keys: time of a block without rows, as keys: a grid is as deep as the longest prefill of the step.
        tail: how much later a prefill ends than its mean block would, in parts of longest less mean block.
        sampler_s: least time of the sampler, seconds a step.
        sampler_passes: fp32 passes over the logits that it takes.
    """

    source: str = GENERIC
    measured_tokens: int = 0
    measured_positions: int = 0
    measured_context: int = 0
    kernel_s: float = 5.0e-6
    bandwidth: float = 0.86
    compute: float = 0.80
    tile_rows: int = 64
    tile_cols: int = 128
    tile_doublings: int = 0
    tile_edge: float = 0.0
    wave: float = 0.2
    tile_overhead: float = 220.0
    blend: float = 3.4
    vector_s: float = 4.0e-6
    vector_number_s: float = 0.0
    vector_bandwidth: float = 0.8
    l2_bandwidth: float = 0.0
    vector_blend: float = 100.0
    decode_s: float = 12.0e-6
    decode_tile_s: float = 0.0
    decode_block_s: float = 3.3e-6
    kv_bandwidth: float = 0.85
    attention_s: float = 0.0
    attention_compute: float = 0.65
    query_tile: int = 64
    packs_group: bool = False
    key_tile: int = 128
    tile_keys: float = 230.0
    empty_keys: float = 0.0
    tail: float = 0.3
    sampler_s: float = 30.0e-6
    sampler_passes: float = 1.8


GENERIC_EFFICIENCY = Efficiency(
    kernel_s=6.0e-6, bandwidth=0.86, compute=0.87, tile_cols=64, tile_doublings=3, tile_edge=8.0, wave=0.06,
    tile_overhead=78.0, blend=3.5, vector_s=2.3e-6, vector_number_s=0.8e-10, vector_bandwidth=0.7, l2_bandwidth=1.1,
    vector_blend=1.6, decode_s=12.0e-6, decode_tile_s=5.3e-6, decode_block_s=2.0e-6, kv_bandwidth=0.82,
    attention_s=4.4e-6, attention_compute=0.65, tile_keys=49.0, empty_keys=12.0, tail=1.5,
)  # fmt: skip
"""Of devices without measurements."""


@dataclass(frozen=True)
class HardwareSheet:
    """One accelerator.

    Attributes:
        name: as given to ``--hardware``.
        bf16_flops: dense bf16 (fp16) peak with fp32 accumulation, FLOP/s.
        fp8_flops, int8_ops: dense peaks at 8 bits, per second; None where the device has no such units (8-bit and
            4-bit weights are then widened on the way and computed at `bf16_flops`).
        memory_bytes: device memory as the driver reports it to programs.
        memory_bandwidth: peak bytes/s.
        link_bandwidth: bytes/s in one direction between two devices of one node.
        sms: streaming multiprocessors, compute units or cores: what thread blocks are spread over.
        l2_bytes: last-level cache; 0: not told.
        efficiency: how near kernels come to these peaks.
        source: where the peaks are from.
        memory_source: where `memory_bytes` is from.
        price_per_hour: of one device, in the user's currency; None: not known (we ship no prices).
    """

    name: str
    bf16_flops: float
    fp8_flops: float | None
    int8_ops: float | None
    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    sms: int
    source: str
    memory_source: str
    efficiency: Efficiency = GENERIC_EFFICIENCY
    l2_bytes: int = 0
    price_per_hour: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        return asdict(self)


_A100 = Efficiency(
    source=VIDUR_A100, measured_tokens=32768, kernel_s=6.284e-6, bandwidth=0.8091, compute=0.85, tile_cols=64,
    tile_doublings=3, tile_edge=9.404, wave=0.02104, tile_overhead=86.42, blend=2.562, vector_s=2.826e-6,
    vector_number_s=1.559e-10, vector_bandwidth=0.4325, l2_bandwidth=0.5125, vector_blend=1.6, decode_s=12.3e-6,
    decode_tile_s=5.3e-6, decode_block_s=2.0e-6, kv_bandwidth=0.77, attention_s=4.4e-6, attention_compute=0.56,
    tile_keys=49.0, empty_keys=12.0, tail=1.5,
)  # fmt: skip
_RTX_4090 = Efficiency(
    source=VLLM_4090, measured_tokens=2048, measured_positions=131072, measured_context=18432, kernel_s=5.981e-6,
    bandwidth=0.9142, compute=1.105, tile_cols=64, tile_doublings=3, tile_edge=6.109, wave=0.1877, tile_overhead=88.03,
    blend=6.911, vector_s=1.85e-6, vector_number_s=2.144e-11, vector_bandwidth=1.049, l2_bandwidth=2.326,
    vector_blend=1.6, decode_s=11.55e-6, decode_tile_s=5.274e-6, decode_block_s=1.98e-6, kv_bandwidth=0.8675,
    attention_s=4.4e-6, attention_compute=0.8, tile_keys=48.81, empty_keys=12.36, tail=1.5, sampler_s=29.7e-6,
    sampler_passes=1.8,
)  # fmt: skip
# FlashAttention 3 packs the query heads of a KV head into tiles of 128 rows (https://arxiv.org/abs/2407.08608).
_HOPPER = replace(GENERIC_EFFICIENCY, query_tile=128, packs_group=True)
_CPU = Efficiency(
    source="kernel_s, bandwidth and compute: benchmarks/cpu_sheet.py on the machine of the sheet; the rest is assumed",
    kernel_s=3.6e-6, bandwidth=1.0, compute=0.85, tile_rows=8, tile_cols=16, wave=0.0, tile_overhead=0.0, blend=4.0,
    vector_s=3.6e-6, vector_bandwidth=1.0, decode_s=3.6e-6, decode_block_s=1.0e-6, kv_bandwidth=1.0,
    attention_compute=0.5, query_tile=8, key_tile=1, tile_keys=16.0, tail=1.0,
)  # fmt: skip

_TORCH_TOTAL = "total capacity in PyTorch's out-of-memory reports for this device"
_SHEETS = (
    HardwareSheet(
        "a100-40gb", 312e12, None, 624e12, int(39.39 * GIB), 1.555e12, 300e9, 108,
        "NVIDIA A100 datasheet (SXM4 40 GB): 312 TFLOPS bf16, 624 TOPS int8, 1,555 GB/s, NVLink 600 GB/s both ways; "
        "108 SMs: NVIDIA A100 architecture white paper, 40 MB L2",
        _TORCH_TOTAL, efficiency=_A100, l2_bytes=40 * MIB,
    ),
    HardwareSheet(
        "a100-80gb", 312e12, None, 624e12, int(79.15 * GIB), 2.039e12, 300e9, 108,
        "NVIDIA A100 datasheet (SXM4 80 GB): 312 TFLOPS bf16, 624 TOPS int8, 2,039 GB/s, NVLink 600 GB/s both ways; "
        "108 SMs: NVIDIA A100 architecture white paper, 40 MB L2",
        _TORCH_TOTAL, efficiency=_A100, l2_bytes=40 * MIB,
    ),
    HardwareSheet(
        "h100", 989.4e12, 1978.9e12, 1978.9e12, int(79.10 * GIB), 3.35e12, 450e9, 132,
        "NVIDIA H100 datasheet (SXM5): 1,979 TFLOPS bf16 and 3,958 fp8 with sparsity, dense is half; 3.35 TB/s, "
        "NVLink 900 GB/s both ways; 132 SMs: NVIDIA H100 architecture white paper, 50 MB L2",
        _TORCH_TOTAL, efficiency=_HOPPER, l2_bytes=50 * MIB,
    ),
    HardwareSheet(
        "h200", 989.4e12, 1978.9e12, 1978.9e12, int(139.80 * GIB), 4.8e12, 450e9, 132,
        "NVIDIA H200 datasheet (SXM): 1,979 TFLOPS bf16 and 3,958 fp8 with sparsity, dense is half; 4.8 TB/s, "
        "NVLink 900 GB/s both ways; the GH100 die of H100 with 132 SMs and 50 MB L2",
        _TORCH_TOTAL, efficiency=_HOPPER, l2_bytes=50 * MIB,
    ),
    HardwareSheet(
        "b200", 2250e12, 4500e12, 4500e12, int(178.35 * GIB), 8.0e12, 900e9, 148,
        "NVIDIA Blackwell architecture brief and HGX B200 datasheet: 2.25 PFLOPS bf16 and 4.5 fp8 dense, 8 TB/s, "
        "NVLink 1.8 TB/s both ways; 148 SMs; 126 MB L2: NVIDIA Blackwell tuning guide",
        _TORCH_TOTAL, efficiency=_HOPPER, l2_bytes=126 * MIB,
    ),
    HardwareSheet(
        "l4", 121e12, 242.5e12, 242.5e12, int(21.96 * GIB), 300e9, 32e9, 58,
        "NVIDIA L4 datasheet: 242 TFLOPS bf16 and 485 fp8 with sparsity, dense is half; 300 GB/s, PCIe 4.0 x16; "
        "7,424 CUDA cores in 58 SMs, 48 MB L2",
        _TORCH_TOTAL, l2_bytes=48 * MIB,
    ),
    HardwareSheet(
        "l40s", 362.05e12, 733e12, 733e12, int(44.40 * GIB), 864e9, 32e9, 142,
        "NVIDIA L40S datasheet: 362.05 TFLOPS bf16 and 733 fp8 dense, 864 GB/s, PCIe 4.0 x16; 18,176 CUDA cores in "
        "142 SMs, 96 MB L2",
        _TORCH_TOTAL, l2_bytes=96 * MIB,
    ),
    HardwareSheet(
        "rtx-4090", 165.2e12, 330.3e12, 660.6e12, 25_250_627_584, 1.008e12, 32e9, 128,
        "NVIDIA Ada GPU architecture white paper: 165.2 TFLOPS bf16 and 330.3 fp8 dense with fp32 accumulation, "
        "1,008 GB/s, 128 SMs, 72 MB L2; PCIe 4.0 x16",
        "total memory that PyTorch reports for the card", efficiency=_RTX_4090, l2_bytes=72 * MIB,
    ),
    HardwareSheet(
        "rtx-3090", 71e12, None, 284e12, int(23.69 * GIB), 936.2e9, 32e9, 82,
        "NVIDIA Ampere GA102 architecture white paper: 71 TFLOPS bf16 dense with fp32 accumulation, 284 TOPS int8, "
        "936 GB/s, 82 SMs, 6 MB L2; PCIe 4.0 x16",
        _TORCH_TOTAL, l2_bytes=6 * MIB,
    ),
    HardwareSheet(
        "rtx-5090", 209.5e12, 419e12, 838e12, int(31.36 * GIB), 1.792e12, 64e9, 170,
        "NVIDIA RTX Blackwell architecture white paper: 209.5 TFLOPS bf16 and 419 fp8 dense with fp32 accumulation, "
        "838 TOPS int8, 1,792 GB/s, 170 SMs, 96 MB L2; PCIe 5.0 x16",
        _TORCH_TOTAL, l2_bytes=96 * MIB,
    ),
    HardwareSheet(
        "rtx-a6000", 154.8e12, None, 309.7e12, int(47.54 * GIB), 768e9, 32e9, 84,
        "NVIDIA RTX A6000 datasheet: 309.7 TFLOPS bf16 with sparsity, dense is half; 309.7 TOPS int8 dense, 768 GB/s; "
        "84 SMs and 6 MB L2: GA102 white paper; PCIe 4.0 x16",
        _TORCH_TOTAL, l2_bytes=6 * MIB,
    ),
    HardwareSheet(
        "rtx-6000-ada", 364.2e12, 728.5e12, 728.5e12, int(47.50 * GIB), 960e9, 32e9, 142,
        "NVIDIA RTX 6000 Ada Generation datasheet: 1,457 TFLOPS fp8 with sparsity, that is 728.5 dense and 364.2 bf16; "
        "960 GB/s, 18,176 CUDA cores in 142 SMs, 96 MB L2; PCIe 4.0 x16",
        _TORCH_TOTAL, l2_bytes=96 * MIB,
    ),
    HardwareSheet(
        "a10", 125e12, None, 250e12, int(22.06 * GIB), 600e9, 32e9, 72,
        "NVIDIA A10 datasheet: 125 TFLOPS bf16 and 250 TOPS int8 dense, 600 GB/s; 9,216 CUDA cores in 72 SMs, 6 MB L2; "
        "PCIe 4.0 x16",
        _TORCH_TOTAL, l2_bytes=6 * MIB,
    ),
    HardwareSheet(
        "rtx-pro-6000", 503.8e12, 1007.6e12, 1007.6e12, int(94.97 * GIB), 1.792e12, 64e9, 188,
        "NVIDIA RTX Blackwell PRO architecture white paper (Workstation Edition): 4,030 TOPS fp4 with sparsity, that "
        "is 1,007.6 TFLOPS fp8 and 503.8 bf16 dense; 1,792 GB/s, 188 SMs, 128 MB L2; PCIe 5.0 x16",
        _TORCH_TOTAL, l2_bytes=128 * MIB,
    ),
    HardwareSheet(
        "mi300x", 1307.4e12, 2614.9e12, 2614.9e12, int(191.98 * GIB), 5.3e12, 448e9, 304,
        "AMD Instinct MI300X data sheet: 1,307.4 TFLOPS bf16 and 2,614.9 fp8 dense, 5.3 TB/s, 304 compute units, "
        "256 MB Infinity Cache, Infinity Fabric 7 x 128 GB/s both ways",
        _TORCH_TOTAL, l2_bytes=256 * MIB,
    ),
    HardwareSheet(
        "cpu", 177e9, None, None, 25_276_514_304, 30.7e9, 30.7e9, 2,
        "measured with benchmarks/cpu_sheet.py on a 2-core AMD EPYC server (Zen 3, AVX2, 2 threads): fp32 products of "
        "2,048 x 2,048 with numpy, and a 268 MB matrix read by a matrix-vector product",
        "physical memory of that machine", efficiency=_CPU,
    ),
)  # fmt: skip

HARDWARE: dict[str, HardwareSheet] = {sheet.name: sheet for sheet in _SHEETS}
"""All sheets by name."""
_ALIASES = {
    "a100": "a100-80gb", "a100-40": "a100-40gb", "a100-80": "a100-80gb", "h100-sxm": "h100", "h100-80gb": "h100",
    "4090": "rtx-4090", "rtx4090": "rtx-4090", "rtxpro6000": "rtx-pro-6000",
}  # fmt: skip


def hardware_names() -> list[str]:
    """Names of all sheets."""
    return sorted(HARDWARE)


def get_hardware(name: str, **changes: Any) -> HardwareSheet:
    """The sheet of that name (case and ``_`` do not matter), with figures replaced by `changes`.

    Raises:
        ConfigError: unknown name (the nearest is suggested), or a change that is no figure of a sheet.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    key = _ALIASES.get(key, key)
    if key not in HARDWARE:
        raise unknown_name("hardware", name, HARDWARE)
    for change in changes:
        if change not in HardwareSheet.__dataclass_fields__:
            raise unknown_name("hardware figure", change, HardwareSheet.__dataclass_fields__)
    if not all(changes.get(figure, 1) > 0 for figure in ("memory_bytes", "memory_bandwidth", "bf16_flops", "sms")):
        raise ConfigError(f"hardware {name}: figures must be > 0, got {changes}")
    return replace(HARDWARE[key], **changes)
