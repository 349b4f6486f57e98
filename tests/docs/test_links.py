"""Links and headings of the pages: files and headings that are pointed to exist, and headings form a tree."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from helpers.shared_data import ROOT

PAGES = sorted(
    path
    for path in (*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"))
    if "_build" not in path.parts  # the site
)


@cache
def text(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings: lower case, without punctuation, hyphens for blanks, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w -]", "", plain.lower()).strip().replace(" ", "-")
        found.add(anchor if anchor not in found else f"{anchor}-1")
    return found


def broken(page: Path) -> Iterator[str]:
    """Links of a page that lead nowhere in this repository."""
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """A link names a file that exists and, with an anchor, a heading of it."""
    assert list(broken(page)) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    """Neither a missing file nor a missing heading passes."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n## A *b* (c)\n\n[x](#a-b-c) [y](#d) [z](none.md) [w](page.md#title)\n", encoding="utf-8"
    )
    assert list(broken(page)) == ["#d", "none.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_headings_form_a_tree(page: Path) -> None:
    """A page has one title, and no heading skips a level, so a site can list them."""
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text(page), re.MULTILINE)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))


def test_the_order_of_pages_has_all_of_them() -> None:
    """Every page of the folder is linked from the page that puts them in order, those on bounds from theirs."""
    for home in (ROOT / "docs", ROOT / "docs" / "bounds"):
        order = home / "index.md"
        linked = {(home / link.partition("#")[0]).resolve() for link in re.findall(r"\]\(([^)\s]+)\)", text(order))}
        assert {page.name for page in home.glob("*.md") if page.resolve() not in linked} == {"index.md"}


def test_the_first_page_is_short() -> None:
    """The README has at most 120 lines."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
