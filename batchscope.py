"""The front door: `batchscope COMMAND` mounts each room's own commands, loaded only when called."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence

try:
    import click

    from scheduler.errors import UserError, unknown_name
except KeyboardInterrupt:  # Ctrl-C this early would show a stack trace
    sys.stderr.write("interrupted\n")
    sys.exit(130)

COMMANDS: dict[str, tuple[str, str]] = {
    "compare": ("simulator.cli:compare", "Several policies on the same requests, side by side."),
    "simulate": ("simulator.cli:simulate", "One policy on a workload; writes a step trace."),
    "sweep": ("simulator.cli:sweep", "A grid over any settings."),
    "capacity": ("simulator.cli:capacity", "The highest rate that meets an SLO, or the replicas a rate needs."),
    "run": ("backend.cli:run", "The real engine: answers prompts, or replays a workload and measures it."),
    "serve": ("backend.cli_serve:serve", "The real engine behind an OpenAI-compatible HTTP server."),
    "model": ("backend.cli_model:model", "Fetch a model, or show one's facts."),
    "profile": ("backend.cli_profile:profile", "Drive the engine through a grid of steps, to calibrate from."),
    "rerun": ("simulator.cli:rerun", "Simulate a recorded run and compare every decision."),
    "calibrate": ("simulator.cli_calibrate:calibrate", "A cost model fitted to recorded steps."),
    "validate": ("simulator.cli_validate:validate", "Simulate a recorded run and show every error."),
    "dashboard": ("dashboard.cli:dashboard", "What-if, live and replay in the browser."),
    "live": ("dashboard.cli:live", "Engine, clients and dashboard in one, with the embedded model."),
    "report": ("dashboard.cli_report:report", "Runs as one HTML file that opens from disk."),
    "explain": ("simulator.cli:explain", "What bounds a run, the evidence, and the next knob."),
    "workload": ("traces.cli_workload:workload", "Read, convert, generate and sample workloads."),
    "trace": ("traces.cli_trace:trace", "Look into, export and check step traces."),
}
"""Command name -> (where it lives, its line in `--help`)."""


class FrontDoor(click.Group):
    """A click group that imports a command's room only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself; raises ConfigError with the nearest name for an unknown one."""
        if cmd_name not in COMMANDS:
            raise unknown_name("command", cmd_name, COMMANDS)
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command list, from the table alone: `--help` imports no room."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])


@click.group(cls=FrontDoor, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="batchscope")
def cli() -> None:
    """See what batching does to an LLM server: simulate, run and watch batching policies."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 a check found something, 2 a mistake in the input, 130 Ctrl-C."""
    try:
        status = cli.main(args=args, prog_name="batchscope", standalone_mode=False)
    except UserError as error:
        _fail(str(error))
    except click.ClickException as error:
        _fail(error.format_message())
    except (KeyboardInterrupt, click.Abort) as stop:
        click.echo("; ".join(["interrupted", *_notes(stop)]), err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader went away (`| head`)
        _drop_stdout()
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _drop_stdout()
        _fail(f"no space left on device while writing {error.filename or 'standard output'}")
    sys.exit(status if isinstance(status, int) else 0)


def _notes(stop: BaseException) -> list[str]:
    """What the interrupted command says it kept; click wraps the interrupt."""
    return [note for error in (stop.__cause__, stop) for note in getattr(error, "__notes__", ())]


def _drop_stdout() -> None:
    """Send what is still buffered nowhere: Python flushes at exit, and that must not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str) -> None:
    click.echo(f"error: {sentence}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
