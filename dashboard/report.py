"""The report: runs and all their figures in one file that opens from disk, with no server and no network."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import plotly.io
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from scheduler.errors import ConfigError, unknown_name
from traces.atomic import atomic_path
from traces.sound import open_checked

from .against.figure import figure
from .against.read import comparison_of
from .against.words import badges, latency_table, sentences, totals_table
from .data.run import Run, TraceRun
from .look import DARK, FONT, LIGHT, MOST_RUNS, RUN_NAMES, Figure, look_named
from .panels import PANELS
from .panels.base import Panel
from .parts.diagnosis import description_of, evidence
from .parts.summary import notes, record_for, summary
from .report_page.facts import facts
from .report_page.markup import markup
from .report_page.slowest import HEADS, slowest
from .scene import Scene
from .view import View

HERE = Path(__file__).parent
STYLES = ("assets/style.css", "assets/parts.css", "templates/report.css")
SCRIPT = "templates/report.js"


def write_report(
    traces: Sequence[str | Path], out: str | Path, *, theme: str = LIGHT.name, title: str | None = None
) -> None:
    """Write one HTML file over traces; the same traces give the same bytes.

    Args:
        traces: one to four folders ``NAME.trace``.
        out: the file; it appears whole or not at all.
        theme: ``light`` or ``dark``.
        title: its heading; None: the runs' names.

    Raises:
        ConfigError: no trace, or too many; an unknown theme.
        InputError: a trace that is none, or cannot be read.
        UserError: the file cannot be written.
    """
    if not 1 <= len(traces) <= MOST_RUNS:
        raise ConfigError(f"{len(traces)} traces; expected 1 to {MOST_RUNS} of them")
    if theme not in (LIGHT.name, DARK.name):
        raise unknown_name("theme", theme, (LIGHT.name, DARK.name))
    runs = tuple(_run(index, Path(path)) for index, path in enumerate(traces))
    scene = Scene(runs, View(runs=tuple(run.key for run in runs)), look_named(theme))
    title_shown = title or " · ".join(run.name for run in runs)
    text = _rendered(scene, title_shown, _commands([str(path) for path in traces], str(out), theme, title))
    with atomic_path(out) as temporary:
        # a name may hold half of a surrogate pair, which no file can: it becomes a reference that browsers show as �
        temporary.write_text(text, encoding="utf-8", errors="xmlcharrefreplace", newline="\n")


def _run(index: int, path: Path) -> TraceRun:
    name = path.resolve().name.removesuffix(".trace")
    return TraceRun(RUN_NAMES[index].lower(), name, open_checked(path))


def _commands(traces: list[str], out: str, theme: str, title: str | None) -> dict[str, str]:
    """The command lines that write this report, and that open its runs in the dashboard."""
    theme_option = ["--theme", theme] if theme != LIGHT.name else []
    title_option = ["--title", title] if title else []
    again = ["batchscope", "report", *traces, "-o", out, *theme_option, *title_option]
    return {"again": shlex.join(again), "closer": shlex.join(["batchscope", "dashboard", *traces])}


def _rendered(scene: Scene, title: str, commands: dict[str, str]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    scripts = [get_plotlyjs(), (HERE / SCRIPT).read_text(encoding="utf-8")]
    return environment.get_template("report.html").render(
        title=title,
        theme=scene.look.name,
        font=FONT,
        policy=_policy(scripts),
        style=Markup("\n".join((HERE / name).read_text(encoding="utf-8") for name in STYLES)),
        scripts=[Markup(script) for script in scripts],
        runs=[_told(scene, index) for index in range(len(scene.runs))],
        summary=Markup(markup(summary(scene))),
        compared=[told for index in range(len(scene.runs)) if (told := _compared(scene, index)) is not None],
        panels=[_panel(panel, scene) for panel in PANELS.values()],
        slowest_heads=HEADS,
        commands=commands,
    )  # fmt: skip


def _policy(scripts: Sequence[str]) -> str:
    """What a browser may do with the file: run these very scripts, and load nothing from anywhere.

    A script is known by its SHA-256 (https://www.w3.org/TR/CSP3/#framework-directive-source-list).
    """
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    known = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {known}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _told(scene: Scene, index: int) -> dict[str, Any]:
    """What the report says of a run."""
    run = scene.runs[index]
    found = description_of(run)
    return {
        "letter": RUN_NAMES[index] if len(scene.runs) > 1 else "",
        "name": run.name,
        "source": run.source,
        "color": scene.look.runs[index],
        "facts": facts(run),
        "notes": notes(run, record_for(run)),
        "diagnosis": found if isinstance(found, str) else found.text,
        "evidence": [] if isinstance(found, str) else evidence(found.evidence),
        "slowest": slowest(run),
        "total": _requests(run),
    }


def _compared(scene: Scene, index: int) -> dict[str, Any] | None:
    """What the report says of a run that was compared with a measured one; None of another."""
    found = comparison_of(scene.runs[index])
    if found is None:
        return None
    told: dict[str, Any] = {"name": scene.label(index), "key": f"against-{scene.runs[index].key}", "figure": None}
    if isinstance(found, str):
        return {**told, "tables": "", "notes": [found]}
    parts = (badges(found), latency_table(found), totals_table(found))
    drawn = figure(found, scene.look)
    if drawn is not None:
        told |= {"figure": _json(drawn), "height": drawn["layout"]["height"]}
    return {**told, "tables": Markup("".join(map(markup, parts))), "notes": sentences(found)}


def _json(drawn: Figure) -> Markup:
    """A figure for an element of its own: plotly.io escapes what could end it."""
    return Markup(plotly.io.json.to_json_plotly(drawn, engine="json"))


def _requests(run: Run) -> int:
    return len(run.column("requests", "request"))


def _panel(panel: Panel, scene: Scene) -> dict[str, Any]:
    drawn = panel.draw(scene)
    return {
        "key": panel.key,
        "title": panel.title,
        "question": panel.question,
        "words": panel.words(scene),
        "shares_x": panel.shares_x,
        "height": drawn["layout"]["height"],
        "figure": _json(drawn),
    }
