"""Tables: plain when piped, readable at any width of a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.table import Table

from traces.tables import print_table

NAMES = ("policy", "layout", "TTFT", "E2E", "queue", "out tok/s", "padding")


def printed(width: int, *, terminal: bool, notes: str = "") -> str:
    table = Table(title="runs [of x]")
    for name in NAMES:
        table.add_column(name, justify="left" if name in ("policy", "layout") else "right")
    table.add_column("notes")
    for policy in ("static", "chunked [new]"):
        table.add_row(policy, "ragged", *["0.0123 / 0.456"] * 3, "1,234", "67.3%", notes)
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, no_color=True)
    print_table(console, table, keys=2)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_piped_table_is_plain_text_with_a_line_a_row() -> None:
    text = printed(10_000, terminal=False, notes="a note")
    assert text.isascii()
    assert "\x1b" not in text
    lines = text.splitlines()
    assert [line.split()[0] for line in lines] == ["runs", "policy", "static", "chunked"]
    times = ["0.0123", "/", "0.456"] * 3
    assert lines[2].split() == ["static", "ragged", *times, "1,234", "67.3%", "a", "note"]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("notes", ["", "saturated, 12,345 preemptions, 17 steps extrapolated"])
def test_a_table_keeps_to_the_terminal_and_no_figure_is_cut(width: int, notes: str) -> None:
    text = printed(width, terminal=True, notes=notes)
    bare = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    assert max(map(len, bare)) <= width
    assert "".join(bare).count("0.0123 / 0.456") == 6
    assert "…" not in text
    parts = [line for line in bare if line.startswith("policy")]
    assert all(line.split()[:2] == ["policy", "layout"] for line in parts)
    assert len(parts) == 1 or width < 120


def test_texts_without_any_text_have_no_column() -> None:
    assert "notes" not in printed(200, terminal=False)
    assert "notes" in printed(200, terminal=False, notes="x")
