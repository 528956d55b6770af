"""`batchscope dashboard` and `batchscope live`: the pages, alone or with an engine and clients."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import socket

Command = TypeVar("Command", bound=Callable[..., Any])


def _server_options(function: Command) -> Command:
    """Options that both commands share."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Say that it is ready as JSON."),
        click.option(
            "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Simulations at once."
        ),
        click.option("--runs-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder for its own runs."),
        click.option("--port", type=click.IntRange(0, 65535), default=8050, show_default=True, help="0: a free one."),
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    ):
        function = option(function)
    return function


@click.command()
@click.argument("traces", nargs=-1, type=click.Path(path_type=Path))
@click.option("--engine", metavar="URL", help="A running server to watch: batchscope's, or any with vLLM's or SGLang's "
              "/metrics.")  # fmt: skip
@click.option("--api-key", default=None, help="Key that the engine asks for; better given as $BATCHSCOPE_API_KEY.")
@click.option("--max-age-days", type=click.FloatRange(min=0, min_open=True), default=7.0, show_default=True,
              help="Its runs and uploads go when they are older.")  # fmt: skip
@click.option("--max-gib", type=click.FloatRange(min=0, min_open=True), default=2.0, show_default=True,
              help="The oldest go when all take more.")  # fmt: skip
@click.option("--allow", metavar="MODULE:CLASS", multiple=True,
              help="A policy or cost model of yours that pages may name; may be repeated.")  # fmt: skip
@_server_options
def dashboard(
    traces: tuple[Path, ...], engine: str | None, api_key: str | None, max_age_days: float, max_gib: float,
    allow: tuple[str, ...], host: str, port: int, runs_dir: Path | None, workers: int, as_json: bool,
) -> None:  # fmt: skip
    """What-if simulations, live engines and recorded runs, in the browser.

    TRACES are step traces (NAME.trace), or folders that hold some.
    """
    from scheduler.plugins import modules_of_this_folder

    from .serve import Settings, default_runs_dir

    modules_of_this_folder()
    settings = Settings(
        traces, runs_dir or default_runs_dir(), workers, engine, api_key or os.environ.get("BATCHSCOPE_API_KEY"),
        max_age_days, max_gib, allow,
    )  # fmt: skip
    _run(settings, host, port, as_json, path="/" if engine is None else "/live")


@click.command()
@click.option("--policy", default="chunked", show_default=True, help="The engine's policy.")
@click.option("--max-num-seqs", type=click.IntRange(1, 256), default=16, show_default=True, help="Its slots.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=4.0, show_default=True,
              help="Requests a second that clients send.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the clients.")
@_server_options
def live(
    policy: str, max_num_seqs: int, rate: float, seed: int, host: str, port: int, runs_dir: Path | None, workers: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Engine, clients and dashboard in one: watch the embedded model at work."""
    from .live.demo import LiveDemo
    from .serve import Settings, default_runs_dir

    with LiveDemo(rate=rate, seed=seed, settings=("--policy", policy, "--max-num-seqs", str(max_num_seqs))) as demo:
        settings = Settings((), runs_dir or default_runs_dir(), workers, demo.url)
        _run(settings, host, port, as_json, path="/live")


def _run(settings: Any, host: str, port: int, as_json: bool, *, path: str) -> None:
    from backend.server.listener import bind

    from .serve import serve, services_of

    with bind(host, port) as listener, services_of(settings, _warn) as services:
        _warn_if_open(listener)
        from .app import create_app

        app = create_app(services)
        _say_ready(listener, path, as_json)
        serve(app, listener)


def _warn(sentence: str) -> None:
    click.echo(f"left out: {sentence}", err=True)


def _warn_if_open(listener: socket.socket) -> None:
    address = listener.getsockname()[0]
    if not ipaddress.ip_address(address).is_loopback:
        click.echo(f"warning: whoever reaches {address} can use this dashboard and its workers", err=True)


def _say_ready(listener: socket.socket, path: str, as_json: bool) -> None:
    from backend.server.listener import url_of

    url = url_of(listener) + path
    click.echo(json.dumps({"url": url, "pid": os.getpid()}) if as_json else f"dashboard ready at {url} (Ctrl-C stops)")
    sys.stdout.flush()
