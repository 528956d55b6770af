"""The result of a load generator as a run to simulate."""

from __future__ import annotations

from pathlib import Path

from scheduler.errors import ConfigError
from traces.client_run import ClientRequests
from traces.metrics import spread
from traces.result_files import read_result
from traces.workload import Workload

from .measured import Floats, MeasuredRun

BY_CLIENT = (
    "times are the client's: they hold the network and the server's HTTP and tokenizer, which are not simulated, and "
    "do not tell when a request was scheduled"
)


def read_client(path: Path, workload: Workload | None, benchmark: int | None) -> MeasuredRun:
    """The run in a result file.

    Args:
        path: of ``vllm bench serve`` or guidellm.
        workload: what was sent, where the file does not say.
        benchmark: which one of several in the file, from 1.

    Raises:
        UserError: it cannot be read, or says too little and no `workload` was given.
    """
    run = read_result(path, benchmark=benchmark)
    requests = run.requests
    if workload is None and run.why_no_arrivals:
        raise ConfigError(f"{path} {run.why_no_arrivals}, or its requests with --workload, a file or a preset")
    return MeasuredRun(
        path=path,
        name=run.tool,
        workload=run.workload() if workload is None else workload,
        settings=None,
        model=run.model,
        hardware=None,
        tensor_parallel=1,
        times=None,
        itl_s=None,
        series=None,
        cost=None,
        planned=False,
        by=run.tool,
        clients=run.clients,
        figures=run.figures if requests is None else _figures(requests),
        totals=run.totals if requests is None or requests.sent_s is None else _totals(requests, requests.sent_s),
        notes=(BY_CLIENT, *run.notes),
    )


def _figures(requests: ClientRequests) -> dict[str, dict[str, float]]:
    several = requests.output_tokens >= 2
    tpot_s = (requests.e2e_s - requests.ttft_s)[several] / (requests.output_tokens[several] - 1)
    found = {"ttft_s": spread(requests.ttft_s), "tpot_s": spread(tpot_s), "e2e_s": spread(requests.e2e_s)}
    if requests.gaps_s is not None:
        found["itl_s"] = spread(requests.gaps_s)
    return {name: figures for name, figures in found.items() if figures is not None}


def _totals(requests: ClientRequests, sent_s: Floats) -> dict[str, float]:
    makespan_s = float((sent_s + requests.e2e_s).max() - sent_s.min())
    return {
        "makespan_s": makespan_s,
        "output_tokens_per_s": float(requests.output_tokens.sum()) / makespan_s,
        "requests_per_s": len(requests) / makespan_s,
    }
