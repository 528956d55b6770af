"""What `fidelity.py` calibrates on, and what it predicts: other arrivals, lengths, policies, layouts, chunks, slots."""

from __future__ import annotations

from fidelity_runs import Case

from traces.arrivals import AllAtOnce, Arrivals, Gamma, Poisson
from traces.generate import Generator, Prefixes
from traces.lengths import ConstantLength, Lengths, LogNormal, Uniform
from traces.workload import Workload

POLICIES = ("static", "slots", "orca", "prefill-first", "chunked")
LAYOUTS = ("ragged", "padded")
CHAT = (LogNormal(80, 0.8, 8, 320), LogNormal(40, 0.8, 4, 160))
"""Prompts and outputs of a chat in small."""


def calibration() -> list[Case]:
    """Runs of a kind that is not predicted, in both layouts: they tell what the grid of steps cannot, as how much of
    each step the host takes when requests come and go.
    """
    requests = work(Gamma(10, 2.0), Uniform(16, 200), Uniform(8, 64), 60, seed=101)
    return [
        case("calibration", "calibration", requests, policy=policy, layout=layout, max_num_seqs=12,
             max_num_batched_tokens=192)
        for policy in ("chunked", "static") for layout in LAYOUTS
    ]  # fmt: skip


def unseen() -> list[Case]:
    """What is predicted by a cost file that was made before it is run."""
    return [*ranked(), *varied()]


def ranked() -> list[Case]:
    """Every policy in every layout on the same requests."""
    chat = work(Poisson(9), *CHAT, 60, seed=1)
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 256}
    return [
        case(f"{policy}, {layout}", "chat", chat, policy=policy, layout=layout, **settings)
        for policy in POLICIES for layout in LAYOUTS
    ]  # fmt: skip


def varied() -> list[Case]:
    """One thing changed at a time."""
    chat = work(Poisson(9), *CHAT, 60, seed=2)
    bursty = work(Gamma(9, 3.0), *CHAT, 60, seed=6)
    equal = work(Poisson(9), Uniform(60, 100), ConstantLength(40), 60, seed=7)
    light = work(Poisson(2), *CHAT, 20, seed=8)
    prefixes = Prefixes(groups=2, length=128, share=0.8)
    shared = Generator(Poisson(10), *CHAT, prefixes=prefixes).workload(60, seed=5)
    return [
        *caps(),
        *chunks(),
        case("bursty arrivals", "bursty", bursty, policy="chunked", max_num_seqs=16, max_num_batched_tokens=256),
        case("equal outputs", "equal", equal, policy="slots", max_num_seqs=8),
        case("light load", "light", light, policy="chunked", max_num_seqs=8),
        case("shared prefixes", "prefixes", shared, policy="chunked", max_num_seqs=8, max_num_batched_tokens=256),
        case("6 clients", "clients", chat, 6, policy="prefill-first", max_num_seqs=8),
    ]


def caps() -> list[Case]:
    """More and fewer slots, all requests there at the start."""
    burst = work(AllAtOnce(), *CHAT, 60, seed=3)
    budget = {"max_num_batched_tokens": 512}
    chunked = (case(f"{n} slots", "slots", burst, policy="chunked", max_num_seqs=n, **budget) for n in (2, 4, 16, 32))
    static = (case(f"static, {n} slots", "slots", burst, policy="static", max_num_seqs=n, **budget) for n in (4, 16))
    return [*chunked, *static]


def chunks() -> list[Case]:
    """Long prompts in smaller and larger chunks."""
    long = work(Poisson(4), Uniform(200, 400), ConstantLength(12), 40, seed=4)
    settings = {"policy": "chunked", "max_num_seqs": 8}
    return [case(f"chunks of {n}", "chunks", long, **settings, max_num_batched_tokens=n) for n in (32, 128, 512)]


def work(arrivals: Arrivals, prompt: Lengths, output: Lengths, requests: int, *, seed: int) -> Workload:
    return Generator(arrivals, prompt, output).workload(requests, seed=seed)


def case(name: str, group: str, workload: Workload, concurrency: int | None = None, **settings: object) -> Case:
    return Case(name, group, workload, concurrency, settings)
