"""Put the tables of a sweep into a page: ``python scripts/experiments_page.py TABLE.md PAGE.md [README.md]``.

They replace the text between the two marks in the page; the rest of the page stays unchanged. The table of the
README has five rows of that page.
"""

import sys
from pathlib import Path

from pipeplan.core.errors import InputError
from pipeplan.io.atomic import write_whole

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"

FIRST_PAGE = {
    ("vgg-16", "4-v100-nvlink"): "VGG-16, 4 V100 with NVLink",
    ("vgg-16", "2x4-v100-10gbit"): "VGG-16, 2 x 4 V100 over 10 Gbit/s",
    ("resnet-50", "2x4-v100-10gbit"): "ResNet-50, 2 x 4 V100 over 10 Gbit/s",
    ("gnmt-8", "2x4-v100-10gbit"): "GNMT-8, 2 x 4 V100 over 10 Gbit/s",
    ("gnmt-512", "8-v100-nvlink"): "GNMT-512, 8 V100 with NVLink",
}
"""Rows of the README, by model and cluster."""
METHODS = ("data-parallel-overlapped", "fully-sharded", "gpipe-whole", "pipedream-replicated", "bapipe-greedy")


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


def with_rows(first_page: str, page: str) -> str:
    """Return the README with the gaps and the ratios of step times that the page has."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    tables: dict[tuple[str, ...], dict[str, str]] = {}
    for cells in lines:
        if cells[:2] == ["model", "cluster"]:
            names = cells
        elif tuple(cells[:2]) in FIRST_PAGE:
            tables.setdefault(tuple(cells[:2]), dict(zip(names, cells, strict=True)))
    rows = [
        f"| {title} | {tables[key]['gap']} | {' | '.join(tables[key][name].partition(' (')[0] for name in METHODS)} |"
        for key, title in FIRST_PAGE.items()
    ]
    before, head, rest = first_page.partition("| model, cluster |")
    titles, rule, after = rest.split("\n", 2)
    while after.startswith("|"):
        after = after.partition("\n")[2]
    return "\n".join([before + head + titles, rule, *rows, after])


def main() -> None:
    """Rewrite the page, and the README's rows, each whole or not at all."""
    tables, page, *first = map(Path, sys.argv[1:])
    text = with_tables(page.read_text(encoding="utf-8"), tables.read_text(encoding="utf-8"))
    write_whole(page, text)
    for each in first:
        write_whole(each, with_rows(each.read_text(encoding="utf-8"), text))


if __name__ == "__main__":
    main()
