"""Measures this CPU for a hardware sheet: matrix products and streaming bandwidth with numpy; prints JSON.

    python benchmarks/cpu_sheet.py [--threads N]

The `cpu` sheet of `simulator/hardware.py` holds what it printed on the machine named there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    threads = parser.parse_args().threads
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)  # read when numpy is loaded, hence the late import below
    print(json.dumps(measure(threads), indent=2))


def measure(threads: int) -> dict[str, object]:
    import numpy as np

    size = 2048
    a = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    b = a.T.copy()
    row = a[:1].copy()
    weights = np.ones((8192, 8192), dtype=np.float32)  # 268 MB: beyond the last cache
    vector = np.ones(8192, dtype=np.float32)
    return {
        "machine": f"{_cpu()}, {os.cpu_count()} cores, {platform.system()}",
        "threads": threads,
        "numpy": np.__version__,
        "gemm_fp32_flops": 2.0 * size**3 / best(lambda: a @ b),
        "gemm_rows_fp32_flops": {n: 2.0 * n * size**2 / best(partial(np.matmul, a[:n], b)) for n in (1, 8, 64, 512)},
        "stream_bytes_per_s": weights.nbytes / best(lambda: weights @ vector),
        "small_product_s": best(lambda: row[:, :64] @ b[:64, :64]),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def best(run: Callable[[], object], repeats: int = 15) -> float:
    """Shortest of some runs, seconds: the machine may be shared."""
    shortest = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"


if __name__ == "__main__":
    main()
