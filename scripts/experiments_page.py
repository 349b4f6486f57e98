"""Put the tables of a sweep into a page: ``python scripts/experiments_page.py TABLE.md PAGE.md``.

They replace the text between the two marks in the page; the rest of the page stays unchanged.
"""

import sys
from pathlib import Path

from pipeplan.core.errors import InputError
from pipeplan.io.atomic import write_whole

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def with_tables(page: str, tables: str) -> str:
    """Return the page with its tables replaced.

    Raises
    ------
    InputError
        If the page does not hold each mark once, in order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or page.count(BEGIN) + page.count(END) != 2:
        raise InputError(f"the page must hold {BEGIN} and then {END}, each once")
    return f"{before}{BEGIN}\n\n{tables.strip()}\n\n{END}{after}"


def main() -> None:
    """Rewrite the page, whole or not at all."""
    tables, page = map(Path, sys.argv[1:])
    write_whole(page, with_tables(page.read_text(encoding="utf-8"), tables.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
