"""The page on search regimes: its tables are those of the code."""

import re
from dataclasses import fields
from importlib import import_module

from helpers.shared_data import ROOT
from pipeplan.search.regimes import REGIMES, Regimes

PAGE = (ROOT / "docs" / "regimes.md").read_text(encoding="utf-8")
AT_LEAST = "pipeplan_formulations.sharding.frontier.MANY"
"""The constant from which on the second way is taken: the page has the number below."""


def numbers(section: str) -> dict[str, int]:
    """The names in the first column of a section's table, and the numbers in the second."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| ([\d,]+) \|", text, re.MULTILINE)
    assert len(rows) == text.count("\n| `")
    return {name: int(number.replace(",", "")) for name, number in rows}


def test_every_threshold_is_on_the_page() -> None:
    """The page lists each threshold of the table with its number, and none besides."""
    table = {each.name: getattr(REGIMES, each.name) for each in fields(Regimes)}
    assert numbers("The thresholds") == {name: threshold.most for name, threshold in table.items()}
    assert all(threshold.reason for threshold in table.values())


def test_constants_of_solvers_are_those_of_their_modules() -> None:
    """Every number of the second table is what its module holds."""
    stated = numbers("Inside the solvers")
    assert len(stated) >= 10
    for path, number in stated.items():
        module, _, name = path.rpartition(".")
        assert getattr(import_module(module), name) == number + (path == AT_LEAST), path
