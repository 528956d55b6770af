"""`batchscope serve`: the engine behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from scheduler.errors import ConfigError
from scheduler.plugins import modules_of_this_folder
from traces.console import options_but_out
from traces.setting_options import given

from .options import engine_options

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI

    from .engine import Engine

MIB = 1 << 20
KEY_VARIABLE = "BATCHSCOPE_API_KEY"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all of them.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0: a free one.")
@click.option("--api-key", default=None, help=f"Key that clients must send; better given as ${KEY_VARIABLE}.")
@click.option(
    "--served-model-name", "names", multiple=True, help="Name that clients call the model by; may be repeated."
)
@click.option(
    "--max-queue", type=click.IntRange(min=1), default=256, show_default=True, help="Requests that may wait; then 503."
)
@click.option(
    "--max-body-mib", type=click.IntRange(1, 1024), default=4, show_default=True, help="Largest request body, MiB."
)
@click.option(
    "--grace", type=click.FloatRange(0, 86400), default=30.0, show_default=True,
    help="Seconds that requests may take to finish when the server is told to stop.",
)  # fmt: skip
@click.option(
    "--allow-origin", "origins", multiple=True, help="Web origin whose pages may call (CORS); may be repeated."
)
@click.option(
    "--trace",
    "--out",
    "out",
    type=click.Path(),
    default=None,
    help="Folder NAME.trace for the step trace; else a temporary one.",
)
@click.option("--verbose", is_flag=True, help="Log every request on standard error.")
@engine_options
@options_but_out
def serve(
    host: str, port: int, api_key: str | None, names: tuple[str, ...], max_queue: int, max_body_mib: int, grace: float,
    origins: tuple[str, ...], out: str | None, verbose: bool, as_json: bool, model: str, seed: int, **settings: Any,
) -> None:  # fmt: skip
    """Serve a model over HTTP with OpenAI's API.

    Ctrl-C or SIGTERM stops it: requests in flight may finish, a second one ends them at once.
    """
    from .engine import Engine
    from .server.app import create_app
    from .server.listener import bind
    from .server.run import Server
    from .server.run import serve as run

    modules_of_this_folder()
    key = _key(api_key)
    with bind(host, port) as listener:
        engine = Engine(model, trace=out, max_queue=max_queue, seed=seed, **given(settings))
        app = create_app(
            engine, names=names, api_key=key, max_body=max_body_mib * MIB, max_queue=max_queue, allow_origins=origins
        )
        _warn_if_open(listener, key)
        server = Server(
            app, engine, grace_s=grace, verbose=verbose, ready=lambda: _say_ready(app, engine, listener, as_json)
        )
        aborted = run(server, listener)
    if engine.failure is not None:
        raise engine.failure
    _say_stopped(engine, aborted, out)


def _key(given: str | None) -> str | None:
    key = os.environ.get(KEY_VARIABLE) if given is None else given
    if key is not None and (not key.strip() or not key.isascii() or not key.isprintable()):
        raise ConfigError(
            f"the API key (--api-key, ${KEY_VARIABLE}) is empty or not plain text; expected ASCII characters"
        )
    return None if key is None else key.strip()


def _warn_if_open(listener: socket.socket, key: str | None) -> None:
    address = listener.getsockname()[0]
    if key is None and not ipaddress.ip_address(address).is_loopback:
        click.echo(f"warning: whoever reaches {address} can use this server; set ${KEY_VARIABLE}", err=True)


def _say_ready(app: FastAPI, engine: Engine, listener: socket.socket, as_json: bool) -> None:
    from .server.listener import url_of

    url, name = url_of(listener), app.state.service.names[0]
    if as_json:
        ready = {"url": url, "model": name, "trace": str(engine.trace_path), "pid": os.getpid()}
        click.echo(json.dumps(ready))
    else:
        click.echo(f"{name} ready at {url}/v1 (Ctrl-C stops)")
    sys.stdout.flush()


def _say_stopped(engine: Engine, aborted: int, out: str | None) -> None:
    parts = [f"stopped after {engine.stats().steps:,} steps"]
    if aborted:
        parts.append(f"{aborted} request{'s' if aborted > 1 else ''} aborted")
    if out is not None:
        parts.append(f"trace in {out}")
    click.echo("; ".join(parts), err=True)
