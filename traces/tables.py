"""Tables for people: fitted to the terminal's width, plain text when piped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_GAP = 2
"""Blanks between columns."""
_FLOWING_WIDTH = 24
"""Columns of the terminal in which a text can still be read when it is broken into lines."""


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    justify: str
    cells: list[str]

    @property
    def flows(self) -> bool:
        """Texts may be broken into lines; figures, on the right, may not."""
        return self.justify == "left"

    @property
    def width(self) -> int:
        from rich.cells import cell_len

        return max(map(cell_len, (self.header, *self.cells)))


def print_table(console: Console, table: Table, *, keys: int = 1) -> None:
    """Print a rich table of texts: plain aligned columns where the console is no terminal; on a terminal that is too
    narrow for it as several tables below each other, each with the first `keys` columns.

    Right-justified columns are figures and stay on one line; left-justified ones may be broken. A column of texts
    without any text is left out.
    """
    columns = [_Column(str(c.header), c.justify, [str(cell) for cell in c.cells]) for c in table.columns]
    shown = [c for at, c in enumerate(columns) if at < keys or not c.flows or any(c.cells)]
    if table.title is not None:
        console.print(str(table.title), style="italic", markup=False, soft_wrap=True)
    for number, part in enumerate(_parts(shown, console.width, keys)):
        if number:
            console.print()
        console.print(_made(console, part, table.show_header, keys))


def _parts(columns: Sequence[_Column], width: int, keys: int) -> Iterator[list[_Column]]:
    """The columns in as few tables as fit the width."""
    first = list(columns[:keys])
    start = sum(column.width for column in first) + _GAP * (keys - 1)
    part, used = [*first], start
    for column in columns[keys:]:
        need = _GAP + (min(column.width, _FLOWING_WIDTH) if column.flows else column.width)
        if len(part) > keys and used + need > width:
            yield part
            part, used = [*first], start
        part.append(column)
        used += need
    yield part


def _made(console: Console, columns: Sequence[_Column], show_header: bool, keys: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    lines = box.SIMPLE_HEAD if console.is_terminal else None
    padding = (0, _GAP - (lines is not None), 0, 0)  # the box has a blank between columns itself
    made = Table(box=lines, show_edge=False, pad_edge=False, padding=padding, show_header=show_header)
    for at, column in enumerate(columns):
        fixed = at < keys or not column.flows
        made.add_column(Text(column.header), justify="left" if column.flows else "right", no_wrap=fixed)
    for row in zip(*(column.cells for column in columns), strict=True):
        made.add_row(*map(Text, row))
    return made
