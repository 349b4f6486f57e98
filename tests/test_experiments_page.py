"""The script that puts a sweep's tables into a page."""

from pathlib import Path

import pytest

from helpers.scripts import script
from helpers.shared_data import ROOT
from pipeplan.core.errors import InputError


def test_tables_are_replaced_and_nothing_else() -> None:
    """Text around the marks stays; putting the same tables in twice changes nothing."""
    page = script("scripts/experiments_page.py")
    old = f"# Title\n\n{page.BEGIN}\nold\n{page.END}\n\nThe end.\n"
    new = page.with_tables(old, "| a |\n")
    assert new == f"# Title\n\n{page.BEGIN}\n\n| a |\n\n{page.END}\n\nThe end.\n"
    assert page.with_tables(new, "| a |\n") == new


@pytest.mark.parametrize("text", ["", "{0}", "{1}{0}", "{0}{0}{1}"])
def test_a_page_without_marks_is_left_alone(text: str) -> None:
    """Both marks must be there, once, in order."""
    page = script("scripts/experiments_page.py")
    with pytest.raises(InputError, match="each once"):
        page.with_tables(text.format(page.BEGIN, page.END), "| a |")


def test_the_page_of_the_experiments_takes_tables() -> None:
    """The committed page has its marks."""
    page = script("scripts/experiments_page.py")
    text = (Path(ROOT) / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert "| b |" in page.with_tables(text, "| b |")


def test_the_rows_of_the_first_page_are_those_of_the_experiments() -> None:
    """The README's table has the page's gaps and ratios."""
    first, page = ((Path(ROOT) / name).read_text(encoding="utf-8") for name in ("README.md", "docs/experiments.md"))
    assert script("scripts/experiments_page.py").with_rows(first, page) == first, "run `make experiments`"
