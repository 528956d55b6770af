"""The engine's own command: `batchscope run` answers prompts, or replays a workload and measures it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scheduler.errors import ConfigError
from scheduler.plugins import modules_of_this_folder
from traces.console import common_options, emit, progress
from traces.setting_options import given

from .options import engine_options

if TYPE_CHECKING:
    from rich.console import Console

    from traces.workload import Workload

    from .engine import Engine
    from .outputs import RequestOutput

PROMPTS = ("What is 2+2?", "Name a color.", "Say hello.", "Capital of France?")
"""What is asked when nobody says; the prompts of the C++ engine whose slots and queue this project follows."""


@click.command()
@click.argument("workload", required=False)
@click.option("--prompt", "prompts", multiple=True, help="Ask this; repeat for more. Without a workload only.")
@click.option("--plain", is_flag=True, help="Send prompts as they are, not as a chat.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Of prompts' sampling.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most output tokens.  [default: what fits]")
@click.option("--requests", type=click.IntRange(min=1), help="Only so many requests of the workload.")
@click.option("--skip-bad", is_flag=True, help="Leave out and count requests that are wrong or could never be served.")
@click.option("--rate", type=float, help="Stretch arrivals to so many requests a second (with --realtime).")
@click.option("--realtime", is_flag=True, help="Requests arrive when the workload says, not all at the start.")
@click.option("--concurrency", type=click.IntRange(min=1), help="So many clients that wait for their answers.")
@click.option("--probe", is_flag=True, help="Time the same small work between steps: how slow the machine was.")
@click.option("--trace", type=click.Path(), help="Record the step trace into this folder (NAME.trace).")
@engine_options
@common_options
def run(
    workload: str | None, prompts: tuple[str, ...], plain: bool, temperature: float, top_p: float,
    max_tokens: int | None, requests: int | None, skip_bad: bool, rate: float | None, realtime: bool,
    concurrency: int | None, probe: bool, trace: str | None, seed: int, out: str | None, as_json: bool, model: str,
    **settings: Any,
) -> None:  # fmt: skip
    """Run the real engine: answers to prompts, or a WORKLOAD (file or preset) measured step by step."""
    modules_of_this_folder()
    options = {"trace": trace, "seed": seed, **given(settings)}
    if workload is None:
        if probe:
            raise ConfigError("--probe is for a workload; leave it out")
        sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        answers = _answer(model, prompts or PROMPTS, sampling, plain, options)
        emit(answers, as_json=as_json, out=out, render=lambda console: _answer_table(answers, console))
        return
    if prompts or plain:
        raise ConfigError("--prompt and --plain are for prompts; leave the workload out, or leave them out")
    source = _workload(workload, requests, rate, seed, skip_bad)
    record = _replay(model, source, options, {"realtime": realtime, "concurrency": concurrency}, probe, skip_bad)
    for reason, count in record["skipped"].items():
        click.echo(f"skipped {count} requests: {reason}", err=True)
    emit(record, as_json=as_json, out=out, render=lambda console: _replay_table(record, trace, console))


def _answer(
    model: str, prompts: tuple[str, ...], sampling: dict[str, Any], plain: bool, options: dict[str, Any]
) -> list[dict[str, Any]]:
    from .engine import Engine
    from .sampling import SamplingParams

    params = SamplingParams(**sampling)
    with Engine(model, **options) as engine:
        asked = [_prompt(engine, prompt, plain) for prompt in prompts]
        answers = engine.generate(asked, params)
    return [_answer_record(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]


def _prompt(engine: Engine, prompt: str, plain: bool) -> list[int]:
    tokenizer = engine.tokenizer
    if plain or tokenizer is None or tokenizer.chat_template is None:
        return engine.encode(prompt)
    return tokenizer.chat([{"role": "user", "content": prompt}])


def _answer_record(prompt: str, answer: RequestOutput) -> dict[str, Any]:
    first_s = answer.first_token_s
    return {
        "prompt": prompt,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": len(answer.prompt_token_ids),
        "output_tokens": len(answer.token_ids),
        "cached_tokens": answer.num_cached_tokens,
        "ttft_s": None if first_s is None else first_s - answer.arrival_s,
        "e2e_s": answer.finished_s - answer.arrival_s,
    }


def _workload(name: str, requests: int | None, rate: float | None, seed: int, skip_bad: bool) -> Workload:
    from traces.presets import resolve_workload

    return resolve_workload(name, requests=requests, rate=rate, seed=seed, skip_bad=skip_bad)


def _replay(
    model: str, workload: Workload, options: dict[str, Any], load: dict[str, Any], probe: bool, skip_bad: bool
) -> dict[str, Any]:
    from traces.record import record_of
    from traces.servable import servable_with
    from traces.store import WORKLOAD
    from traces.write_workload import write_workload

    from .engine import Engine
    from .probe import probe_for
    from .replay import check_load, replay
    from .workload_log import WorkloadLog

    check_load(**load)
    start_s = time.perf_counter()
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(model, note={"load": load}, **options))
        bar = stack.enter_context(progress("running", len(workload)))
        if probe:
            stack.enter_context(probe_for(model, options)).beside(engine)
        workload = servable_with(engine.config, workload, skip_bad=skip_bad)
        engine.annotate(
            workload={"name": workload.name, "requests": len(workload), "digest": workload.digest()},
            skipped=dict(workload.skipped),
        )
        log = WorkloadLog(engine.config.block_size)
        engine.observe_ends(log.note)
        replay(engine, workload, **load, on_end=lambda: bar.advance(1))
    assert engine.trace is not None
    if options["trace"] is not None:
        write_workload(log.workload(workload.name), Path(options["trace"]) / WORKLOAD)
    record = record_of(engine.trace, wall_s=time.perf_counter() - start_s)
    return {**{name: engine.trace.meta[name] for name in ("source", "model", "hardware", "workload", "load")}, **record}


def _answer_table(records: list[dict[str, Any]], console: Console) -> None:
    from rich.table import Table

    from traces.tables import print_table

    table = Table()
    for name in ("prompt", "answer"):
        table.add_column(name)
    for name in ("tokens", "TTFT", "total"):
        table.add_column(name, justify="right")
    table.add_column("ended by")
    for record in records:
        ttft_s = record["ttft_s"]
        table.add_row(
            record["prompt"], record["text"].strip(), str(record["output_tokens"]),
            "-" if ttft_s is None else f"{ttft_s * 1000:.0f} ms", f"{record['e2e_s'] * 1000:.0f} ms",
            record["finish_reason"],
        )  # fmt: skip
    print_table(console, table)


def _replay_table(record: dict[str, Any], trace: str | None, console: Console) -> None:
    from traces.run_table import run_table

    load = record["workload"]
    console.print(f"{load['requests']} requests of {load['name']}, measured on {record['model']}, {record['hardware']}")
    run_table([record], console)
    if trace is not None:
        console.print(f"step trace: {trace}")
