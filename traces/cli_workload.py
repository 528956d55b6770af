"""``batchscope workload``: look at workloads, convert, generate and sample them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.errors import ConfigError

from .console import common_options, emit
from .tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

    from .generate import Prefixes, Sessions
    from .workload import Workload

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def workload() -> None:
    """Read, convert, generate and sample workloads (which requests arrive when, with how many tokens)."""


def reading_options(command: F) -> F:
    """Add the options that say how to read a workload: all the keywords of `read_source`."""
    for option in (
        click.option("--rate", type=float, help="Stretch arrival times to so many requests per second on average."),
        click.option("--requests", "-n", type=int, help="Only the first so many requests (of a preset: so many)."),
        click.option("--end", type=float, help="Only arrivals before this second."),
        click.option("--start", type=float, help="Only arrivals from this second on; it becomes second 0."),
        click.option("--hash-block", type=int, help="Tokens that one of the hash_ids stands for."),
        click.option("--skip-bad", is_flag=True, help="Leave out rows that cannot be read; they are counted."),
        click.option("--sort", is_flag=True, help="Put requests in order of arrival."),
    ):
        command = option(command)
    return command


def read_source(
    source: str,
    *,
    sort: bool = False,
    skip_bad: bool = False,
    hash_block: int | None = None,
    start: float | None = None,
    end: float | None = None,
    requests: int | None = None,
    rate: float | None = None,
    seed: int = 0,
) -> Workload:
    """The workload that a command's `source` and `reading_options` mean; raises UserError."""
    from .presets import resolve_workload

    span = None if start is None and end is None else (start or 0.0, float("inf") if end is None else end)
    return resolve_workload(
        source,
        requests=requests,
        rate=rate,
        seed=seed,
        sort=sort,
        skip_bad=skip_bad,
        hash_block=hash_block,
        span_s=span,
    )


@workload.command()
@click.argument("source")
@reading_options
@common_options
def info(source: str, as_json: bool, out: str | None, **reading: Any) -> None:
    """Describe SOURCE, a file of any known format or a preset: rate, burstiness, lengths, shared prefixes."""
    _report(read_source(source, **reading), as_json=as_json, out=out)


@workload.command()
@click.argument("source")
@click.argument("target")
@reading_options
@common_options
def convert(source: str, target: str, as_json: bool, out: str | None, **reading: Any) -> None:
    """Write SOURCE to TARGET as our own CSV or JSON lines (.csv, .jsonl), nothing lost."""
    from .write_workload import writer_for

    writer_for(target)  # a bad name is said before the reading
    _write_and_report(read_source(source, **reading), target, as_json=as_json, out=out)


@workload.command()
@click.argument("source")
@click.argument("target")
@click.option("--size", type=int, required=True, help="Requests to draw.")
@reading_options
@common_options
def sample(source: str, target: str, size: int, as_json: bool, out: str | None, seed: int, **reading: Any) -> None:
    """Draw requests of SOURCE at random into TARGET, in order of arrival, times as they are (so the rate falls)."""
    drawn = read_source(source, seed=seed, **reading).sample(size, seed)
    _write_and_report(drawn, target, as_json=as_json, out=out)


@workload.command()
@click.argument("target")
@click.option("--requests", "-n", type=int, default=1000, show_default=True, help="Requests to make.")
@click.option("--arrivals", default="poisson:rate=1", show_default=True, help=(
    "all-at-once, constant:rate=, poisson:rate=, gamma:rate=,cv=, bursts:rate=,on=,off=[,off_rate=], "
    "ramp:start=,end=,seconds="
))  # fmt: skip
@click.option("--prompt", default="lognormal:mean=500,sigma=1", show_default=True, help=(
    "Tokens: constant:N, uniform:low=,high=, lognormal:mean=,sigma=[,min=,max=], zipf:a=,max=[,min=], "
    "empirical:file=[,column=]"
))  # fmt: skip
@click.option("--output", default="lognormal:mean=200,sigma=0.8", show_default=True, help="Tokens, as for --prompt.")
@click.option("--prefixes", help="Prompts that begin alike: groups=,length=[,zipf=,share=].")
@click.option("--sessions", help="Conversations: turns=[,think=,ttft=,tpot=,max_context=].")
@click.option("--max-tokens", type=int, default=0, help="The limit that requests are sent with; 0: their output.")
@common_options
def generate(
    target: str,
    requests: int,
    arrivals: str,
    prompt: str,
    output: str,
    prefixes: str | None,
    sessions: str | None,
    max_tokens: int,
    as_json: bool,
    out: str | None,
    seed: int,
) -> None:
    """Make a synthetic workload and write it to TARGET (.csv or .jsonl); same options and seed, same bytes."""
    from .arrivals import parse_arrivals
    from .generate import Generator
    from .lengths import parse_lengths
    from .write_workload import writer_for

    writer_for(target)
    if requests < 1:
        raise ConfigError(f"requests is {requests}; expected a whole number >= 1")
    generator = Generator(
        parse_arrivals(arrivals),
        parse_lengths(prompt, "prompt"),
        parse_lengths(output, "output"),
        prefixes=_prefixes(prefixes),
        sessions=_sessions(sessions),
        max_tokens=max_tokens,
    )
    made = generator.workload(requests, seed=seed)
    _write_and_report(made, target, as_json=as_json, out=out)


def _prefixes(spec: str | None) -> Prefixes | None:
    from .generate import Prefixes
    from .specs import parse_spec

    return None if spec is None else parse_spec("option", f"prefixes:{spec}", {"prefixes": Prefixes})


def _sessions(spec: str | None) -> Sessions | None:
    from .generate import Sessions
    from .specs import parse_spec

    return None if spec is None else parse_spec("option", f"sessions:{spec}", {"sessions": Sessions})


def _write_and_report(made: Workload, target: str, *, as_json: bool, out: str | None) -> None:
    from .write_workload import write_workload

    write_workload(made, target)
    _report(made, as_json=as_json, out=out, written=target)


def _report(made: Workload, *, as_json: bool, out: str | None, written: str | None = None) -> None:
    stats = made.stats()
    if written is not None:
        stats["written"] = written
    emit(stats, as_json=as_json, out=out, render=lambda console: _render(console, stats))


def _render(console: Console, stats: dict[str, Any]) -> None:
    from rich.table import Table

    facts = Table("workload", stats["name"])
    for label, value in _facts(stats):
        facts.add_row(label, value)
    print_table(console, facts)
    console.print()
    names = list(stats["prompt_tokens"])
    lengths = Table("tokens")
    for name in names:
        lengths.add_column(name, justify="right")
    for column in ("prompt_tokens", "output_tokens"):
        lengths.add_row(column.partition("_")[0], *(_figure(stats[column][name]) for name in names))
    print_table(console, lengths)
    for reason, count in stats["skipped"].items():
        console.print(f"left out: {count} row{'' if count == 1 else 's'}, {reason}")
    if "written" in stats:
        console.print(f"written: {stats['written']}", soft_wrap=True)


def _facts(stats: dict[str, Any]) -> list[tuple[str, str]]:
    share, cv, rate = stats["prefix_share"], stats["interarrival_cv"], stats["rate_per_s"]
    facts = [
        ("requests", f"{stats['requests']:,}"),
        ("arrivals", f"{stats['first_arrival_s']:.3f} s to {stats['last_arrival_s']:.3f} s"),
        ("rate", "all at once" if rate is None else f"{rate:.3f} requests/s"),
        ("burstiness", "-" if cv is None else f"{cv:.2f} (coefficient of variation of the gaps; 1: Poisson)"),
        ("longest", f"{stats['max_sequence_tokens']:,} tokens (prompt + output)"),
        ("contents", "lengths only" if share is None else f"units of {stats['hash_block']} tokens"),
    ]
    if share is not None:
        facts.append(("shared", f"{share:.1%} of the prompt tokens repeat an earlier prefix"))
    if stats["sessions"] is not None:
        facts.append(("sessions", f"{stats['sessions']:,}"))
    return [*facts, ("digest", stats["digest"][:16])]


def _figure(value: float) -> str:
    return f"{value:,.1f}" if isinstance(value, float) and not value.is_integer() else f"{value:,.0f}"
