"""Commands that pages show with their output, and the script that runs them."""

import re
from pathlib import Path
from typing import Any

import pytest

from helpers.scripts import script
from helpers.shared_data import ROOT

shown = script("scripts/shown.py")
PAGES = [page for page in shown.PAGES if list(shown.shown(page.read_text(encoding="utf-8")))]


def test_lines_are_compared_in_order_and_dots_stand_for_anything() -> None:
    """A line that is not printed, or only before the one above it, is named."""
    text = "one 1.5 s\ntwo\nthree\n"
    assert shown.differing(["one …", "…", "three"], text) == []
    assert shown.differing(["two", "one 1.5 s", "four"], text) == ["one 1.5 s", "four"]


def test_commands_of_a_page_are_found_with_their_lines() -> None:
    """Blocks without a prompt are no commands; one block may have several."""
    page = "```\n$ pipeplan list\na\n$ pipeplan show x\nb\nc\n```\n\n```\npipeplan solve\n```\n"
    assert list(shown.shown(page)) == [("pipeplan list", ["a"]), ("pipeplan show x", ["b", "c"])]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_print_what_the_pages_show(page: Path) -> None:
    """Every line of a shown output is printed."""
    assert shown.of_page(page) == []


@pytest.mark.slow
def test_the_model_of_the_first_page_is_built() -> None:
    """The README's function returns a workload whose loss is a number."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    code = re.search(r"```python\n(import torch.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    workload = names["build"]()
    inputs, targets = workload.draw(1, torch.Generator().manual_seed(0))
    assert workload.loss(workload.module(**inputs), targets).detach() > 0
