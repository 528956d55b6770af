"""Time of one `step_cost` call, for a steady decode and for mixed steps, token counts seen before; prints JSON.

python benchmarks/cost_model.py [--calls N]
"""

from __future__ import annotations

import argparse
import json
import platform
import time

from scheduler.plan import StepShape
from simulator.costs import CostModel, make_cost_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000)
    calls = parser.parse_args().calls
    model, hardware = "llama-3-8b", "a100-80gb"
    models = {
        "roofline": make_cost_model("roofline", model=model, hardware=hardware),
        "roofline, tp 4, fp8": make_cost_model(
            "roofline", model=model, hardware=hardware, tensor_parallel=4, kv_dtype="fp8"
        ),
        "roofline, sliding window": make_cost_model("roofline", model="mistral-7b", hardware=hardware),
        "linear": make_cost_model("linear:step_s=0.008,token_s=2e-5,context_s=1e-8"),
    }
    shapes = {
        "decode, 64 requests": StepShape("ragged", 64, 64, 64, 64, 65536),
        "63 decodes and a chunk of 449": StepShape("ragged", 512, 64, 64, 63, 64512, 449, 1000, 348000),
    }
    times = {
        name: {what: round(1e6 * best(cost, shape, calls), 3) for what, shape in shapes.items()}
        for name, cost in models.items()
    }
    print(json.dumps({"python": platform.python_version(), "calls": calls, "us_per_step_cost": times}, indent=2))


def best(model: CostModel, shape: StepShape, calls: int, repeats: int = 5) -> float:
    """Seconds a call in the fastest of some rounds."""
    step_cost, shortest = model.step_cost, float("inf")
    step_cost(shape)  # the first call fills the caches
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            step_cost(shape)
        shortest = min(shortest, time.perf_counter() - start)
    return shortest / calls


if __name__ == "__main__":
    main()
