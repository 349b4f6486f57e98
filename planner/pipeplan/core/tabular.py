"""`Table`: rows under headings, as text, Markdown, HTML and a data frame; `Tabular`: objects that have one.

Notebooks show the table of an object, ``pipeplan show`` prints it, and ``to_pandas`` returns it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from textwrap import indent, wrap
from typing import Any, Literal

from pipeplan.core.errors import InputError
from pipeplan.core.units import format_bytes, format_flops, format_time
from pipeplan.core.wording import terminal_width

LEAST = 32
"""Least width of a last column; in a narrower one its text stands below the row."""
SCREEN = 160
"""Columns of a table that is not printed in a terminal."""

Unit = Literal["", "bytes", "ns", "flops", "share"]
"""What a column's numbers are; the cells of a column without a unit are text or plain numbers."""


_FORMATS: Mapping[Unit, Callable[[Any], str]] = {
    "": str,
    "bytes": format_bytes,
    "ns": format_time,
    "flops": format_flops,
    "share": lambda value: f"{value:.2%}",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings.

    Attributes
    ----------
    columns : mapping of str to str
        Unit of each column (`Unit`), by its heading.
    rows : tuple of tuple
        Cells in the columns' order: numbers in the unit (bytes, nanoseconds), text, or None for an empty cell.
    most : int
        Most rows that are shown; of more, the first and last ones.
    optional : tuple of str
        Headings of columns that text leaves out where they have no room, in this order.
    """

    columns: Mapping[str, Unit]
    rows: tuple[tuple[Any, ...], ...]
    most: int = 40
    optional: tuple[str, ...] = ()

    @classmethod
    def of_text(cls, headings: Sequence[str], rows: Iterable[Sequence[str]], optional: Sequence[str] = ()) -> "Table":
        """Return a table of text, of which every row is shown."""
        kept = tuple(map(tuple, rows))
        return cls(dict.fromkeys(headings, ""), kept, max(len(kept), 1), tuple(optional))

    def printed(self) -> str:
        """Return the table as wide as the terminal, or as `SCREEN`."""
        return self.as_text(width=terminal_width(SCREEN))

    def as_text(self, rule: bool = False, width: int | None = None) -> str:
        """Return lines of aligned columns; numbers are aligned to the right.

        ``rule``: whether a line is drawn below the headings. ``width``: most columns of a line. Where they do not
        suffice, `optional` columns are left out, the last column is wrapped, or it stands below its row.
        """
        columns = list(zip(tuple(self.columns), *self._shown(), strict=True))
        right = [self._numeric(n) for n in range(len(columns))]
        sizes = [max(map(len, column)) for column in columns]
        every = list(range(len(columns)))
        kept, below = every, False
        if width is not None:
            least = min(sizes[-1], LEAST)
            kept = self._narrowed(every, lambda some: _begin(sizes, some) + least <= width)
            below = _begin(sizes, kept) + least > width
            if below:
                kept = self._narrowed(every, lambda some: _begin(sizes, some) - 2 <= width)
        begin, last = _begin(sizes, kept), sizes[-1]
        room = last if width is None else width - begin
        lines = []
        for *firsts, end in zip(*(columns[n] for n in kept), strict=True):
            ends = (
                [end]
                if not below and room >= last
                else wrap(end, (width or 0) - 4 if below else room, break_on_hyphens=False) or [""]
            )
            heads = firsts if below else [*firsts, ends.pop(0)]
            cells = (
                cell.rjust(sizes[n]) if right[n] else cell.ljust(sizes[n]) for n, cell in zip(kept, heads, strict=False)
            )
            lines += ["  ".join(cells).rstrip(), *(indent(part, " " * (4 if below else begin)) for part in ends)]
            if rule and len(lines) == 1:
                lines.append("  ".join("-" * sizes[n] for n in kept))
        return "\n".join(lines)

    def _narrowed(self, columns: list[int], suits: Callable[[list[int]], bool]) -> list[int]:
        """Return the columns without as many `optional` ones as it takes to suit."""
        headings = list(self.columns)
        for heading in self.optional:
            if suits(columns):
                break
            columns = [n for n in columns if headings[n] != heading]
        return columns

    def as_markdown(self) -> str:
        """Return a table of Markdown."""
        cells = [tuple(self.columns), ("---",) * len(self.columns), *self._shown()]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)

    def as_html(self, caption: str) -> str:
        """Return a table of HTML below a caption."""
        right = [' class="number"' * self._numeric(n) for n in range(len(self.columns))]
        head = _html_row("th", self.columns, [f' scope="col"{side}' for side in right])
        body = "".join(_html_row("td", row, right) for row in self._shown())
        return f"<table><caption>{escape(caption)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`; bytes and seconds have these units in their columns' names.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        if find_spec("pandas") is None:
            raise InputError("data frames need pandas; install it with: pip install pandas")
        import pandas

        names = [_column_name(heading, unit) for heading, unit in self.columns.items()]
        seconds = [unit == "ns" for unit in self.columns.values()]
        rows = [
            [cell / 1e9 if time and cell is not None else cell for cell, time in zip(row, seconds, strict=True)]
            for row in self.rows
        ]
        return pandas.DataFrame(rows, columns=names)

    def _shown(self) -> list[tuple[str, ...]]:
        """The cells as text, without the rows in the middle if there are more than ``most``."""
        rows: Sequence[tuple[Any, ...]] = self.rows
        left_out = len(rows) - self.most
        if left_out > 0:
            gap = (f"… {left_out} more",) + ("…",) * (len(self.columns) - 1)
            rows = (*rows[: self.most // 2], gap, *rows[-self.most // 2 :])
        formats = [_FORMATS[unit] for unit in self.columns.values()]
        return [
            tuple("" if cell is None else cell if isinstance(cell, str) else write(cell) for cell, write in pairs)
            for pairs in (zip(row, formats, strict=True) for row in rows)
        ]

    def _numeric(self, column: int) -> bool:
        return any(isinstance(row[column], int | float) for row in self.rows)


def _begin(sizes: Sequence[int], kept: Sequence[int]) -> int:
    """Return where the last of the kept columns begins."""
    return sum(sizes[n] + 2 for n in kept[:-1])


class Tabular:
    """An object with a headline and a table: a short ``repr``, a table in notebooks, a data frame."""

    @property
    def headline(self) -> str:
        """What it is, in one line."""
        raise NotImplementedError

    def table(self) -> Table:
        """What it consists of."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return the table as a `pandas.DataFrame`, with units in the columns' names.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return self.table().to_pandas()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.headline}>"

    def _repr_html_(self) -> str:
        return self.table().as_html(self.headline)


def _html_row(tag: str, cells: Iterable[str], attributes: Iterable[str]) -> str:
    pairs = zip(cells, attributes, strict=True)
    return f"<tr>{''.join(f'<{tag}{more}>{escape(cell)}</{tag}>' for cell, more in pairs)}</tr>"


def _column_name(heading: str, unit: Unit) -> str:
    suffix = {"ns": "_s", "bytes": "_bytes", "flops": "_flops"}.get(unit, "")
    return heading.replace(" ", "_") + suffix
