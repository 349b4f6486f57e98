"""The site: built without a warning, every page in it, and its notebooks executed."""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

import pipeplan
import pipeplan_executor
from helpers.scripts import script
from helpers.shared_data import ROOT
from pipeplan.cli.main import commands

site = script("scripts/site.py")


def test_every_public_name_is_in_the_api() -> None:
    """Each once, those of both packages."""
    names = [name for page in site.API.values() for name in page]
    public = {*pipeplan.__all__} - {"__version__"} | {f"pipeplan_executor.{each}" for each in pipeplan_executor.__all__}
    assert sorted(names) == sorted(public)


def test_every_command_has_a_page_with_its_options() -> None:
    """What a parser takes stands in its page."""
    pages = dict(site.command_pages())
    assert set(pages) == {f"commands/{command.name}.md" for command in commands()}
    assert "| `--memory SIZE` |" in pages["commands/solve.md"]


def test_links_between_pages_are_those_of_the_site() -> None:
    """Pages outside of the folder keep their links, and files that are no pages lose them."""
    page = ROOT / "docs" / "bounds" / "index.md"
    text = "[a](../../README.md#x) [b](../costs.md) [c](../../Makefile) [d](https://x.org)"
    assert site._moved(text, page) == "[a](../readme.md#x) [b](../costs.md) c [d](https://x.org)"


@pytest.mark.slow
def test_the_site_is_built_without_warnings() -> None:
    """Links, anchors, docstrings and the cells of all notebooks included."""
    if not all(map(find_spec, ("sphinx", "furo", "myst_nb"))):
        pytest.skip("needs the extra docs")
    done = subprocess.run([sys.executable, "scripts/site.py", "--fresh"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    html = site.HTML
    assert {path.relative_to(site.SOURCE).with_suffix("") for path in site.SOURCE.rglob("*.*") if _page(path)} <= {
        path.relative_to(html).with_suffix("") for path in html.rglob("*.html")
    }
    pages = {path.stem: path.read_text(encoding="utf-8") for path in html.rglob("*.html")}
    assert re.search(r'class="[^"]*output', pages["first-plan"])
    assert [
        tag for page in pages.values() for tag in re.findall(r"<img[^>]*>", page) if not re.search('alt="[^"]', tag)
    ] == []


def _page(path: object) -> bool:
    return str(path).endswith((".md", ".rst", ".ipynb"))
