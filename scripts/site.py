"""Build the site: ``python scripts/site.py``, or ``make docs``. Warnings are errors.

The pages of ``docs/``, the README, CONTRIBUTING and the changelog are laid out in ``docs/_build/source``, where links
between them follow. Commands are added from their parsers, the API from docstrings, and fields of files from their
schemas; the order of the pages is that of the links of ``docs/index.md``.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pipeplan
import pipeplan_executor
from pipeplan.cli.main import OWN, commands, parser
from pipeplan.cli.schema import FILES, schema_of

sys.path.insert(0, str(Path(__file__).parent))
from schemas import field_tables

ROOT = Path(__file__).resolve().parents[1]
DOCS, BUILD = ROOT / "docs", ROOT / "docs" / "_build"
SOURCE, HTML = BUILD / "source", BUILD / "html"
BESIDE = {ROOT / f"{name}.md": f"{name.lower()}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")}
"""Pages outside of ``docs/``, and where they lie in the site."""
API = {
    "Questions": ("solve", "judge", "compare", "explain", "remedies", "frontier", "fewest_devices", "shard", "sweep"),
    "Models": (
        *("load_model", "profile", "profile_workload", "Workload", "Model", "Layer", "LayerCost", "Profile"),
        *("Provenance", "SliceProfile", "Tie", "Work"),
    ),
    "Clusters and jobs": (
        *("load_cluster", "Cluster", "Node", "Device", "DeviceKind", "Link", "Overlap", "Job", "Objective", "Robust"),
    ),
    "Answers": (
        *("Result", "Plan", "Schedule", "Action", "Kind", "simulate", "validate_plan", "Explanation", "Frontier"),
        *("Judgement", "Sharded", "PipeplanError", "InputError", "InfeasibleError", "PlanError"),
    ),
    "Runs": tuple(f"pipeplan_executor.{name}" for name in pipeplan_executor.__all__),
}
"""Pages of the API and what they describe, in order."""


def pages() -> Iterator[tuple[str, str]]:
    """Return every page of the site, as its path there and its text."""
    for path in [*sorted(DOCS.rglob("*.md")), *BESIDE]:
        if BUILD not in path.parents:
            yield _place(path), _for_site(path)
    yield from command_pages()
    yield from api_pages()


def _place(path: Path) -> str:
    return BESIDE.get(path) or path.relative_to(DOCS).as_posix()


def _for_site(path: Path) -> str:
    """A page with links as they are in the site, tables of fields, and the toctrees of what it puts in order."""
    text = path.read_text(encoding="utf-8")
    for file in FILES:
        text = text.replace(f"<!-- fields: {file} -->", field_tables(schema_of(file)))
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    text = "".join(part if part.startswith("```") else _moved(part, path) for part in parts)
    if path == DOCS / "index.md":
        text = _with_toctrees(text)
    if path == DOCS / "commands.md":
        text += _toctree([f"commands/{command.name}.md" for command in commands()])
    if path == DOCS / "api.md":
        text += _toctree([f"api/{_file(title)}" for title in API], hidden=False)
    if path.parent == DOCS / "bounds" and path.name == "index.md":
        text += _toctree([f"{title} <{link}>" for link, title in _links(text).items() if "/" not in link])
    return text


def _moved(text: str, path: Path) -> str:
    """Text whose links to files outside of the site are plain text, and the others are paths of the site."""

    def link(match: re.Match[str]) -> str:
        name, mark, anchor = match[2].partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return match[0]
        target = (path.parent / name).resolve()
        if target not in BESIDE and DOCS not in target.parents:
            return match[1]
        here = Path(_place(path)).parent
        return f"[{match[1]}]({os.path.relpath(_place(target), here)}{mark}{anchor})"

    return re.sub(r"(?<!`)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


def _links(text: str) -> dict[str, str]:
    """Pages that a text links to, each with the text of its first link as a title."""
    found: dict[str, str] = {}
    for title, link in re.findall(r"\[([^\]]+)\]\(([^)\s:#]+\.(?:md|ipynb))[^)\s]*\)", text):
        found.setdefault(link, " ".join((title[0].upper() + title[1:]).split()))
    return found


def _with_toctrees(text: str) -> str:
    """The page that puts all in order, with a toctree of what each section links to first."""
    taken: set[str] = set()
    parts = []
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        linked = [f"{title} <{link}>" for link, title in _links(section).items() if link not in taken]
        taken.update(_links(section))
        parts.append(section + _toctree(linked, re.sub(r"^## |^# .*", "", section.partition("\n")[0])))
    return "".join(parts)


def _toctree(linked: list[str], caption: str = "", hidden: bool = True) -> str:
    options = [":maxdepth: 1", *([":hidden:"] if hidden else []), *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *linked, "```", ""])


def command_pages() -> Iterator[tuple[str, str]]:
    """Return a page for every command, from its parser."""
    for command in commands():
        top = parser([command.name])
        [sub] = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
        one: argparse.ArgumentParser = sub.choices[command.name]
        origin = "" if command.name in OWN else "Needs the extra `torch`.\n\n"
        lines = [f"# {command.name}\n\n{_with_code(one.description or command.summary)}\n\n{origin}"]
        example = f"$ pipeplan {command.name} {command.example}\n\n" if command.example else ""
        lines.append(f"```text\n{example}{one.format_usage().strip()}\n```\n")
        for group in one._action_groups:
            shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
            if shown:
                lines.append(f"\n## {(group.title or 'options').capitalize()}\n\n{group.description or ''}\n")
                lines += ["| | |", "|---|---|", *(_row(action, one) for action in shown)]
        yield f"commands/{command.name}.md", "\n".join(lines) + "\n"


def _row(action: argparse.Action, one: argparse.ArgumentParser) -> str:
    """A line of the table of options: how the option is given, and its help."""
    formatter = argparse.HelpFormatter(one.prog)
    names = formatter._format_action_invocation(action).replace("|", "\\|")
    text = _with_code(formatter._expand_help(action) if action.help else "").replace("|", "\\|")
    return f"| `{names}` | {text} |"


def _with_code(text: str) -> str:
    """Help on one line, with options as code."""
    return (
        re.sub(r"(?<![`\w])(--[a-z][\w-]*)", r"`\1`", " ".join(text.split())).replace("<", "&lt;").replace("*", "\\*")
    )


def api_pages() -> Iterator[tuple[str, str]]:
    """Return the pages of the API: what docstrings say about every public name."""
    for title, names in API.items():
        lines = [title, "=" * len(title), ""]
        for name in names:
            package, _, short = name.rpartition(".")
            thing = getattr(pipeplan_executor if package else pipeplan, short)
            full = f"{package or 'pipeplan'}.{short}"
            lines += [full, "-" * len(full), ""]
            if isinstance(thing, type):
                lines += [f".. autoclass:: {full}", "   :members:", ""]
            else:
                lines += [f".. autofunction:: {full}", ""]
        yield f"api/{_file(title)}", "\n".join(lines)


def _file(title: str) -> str:
    return title.lower().replace(" ", "-") + ".rst"


def lay_out() -> None:
    """Write what has changed of the pages, pictures and notebooks, and remove what is no page any more."""
    files = {SOURCE / place: text.encode() for place, text in pages()}
    for pattern in ("*.png", "*.svg", "*.ipynb"):
        files |= {SOURCE / _place(path): path.read_bytes() for path in DOCS.rglob(pattern) if BUILD not in path.parents}
    for old in [path for path in SOURCE.rglob("*") if path.is_file() and path not in files]:
        old.unlink()
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def main() -> int:
    """Lay the pages out and build them; ``--fresh`` begins anew, other words go to Sphinx."""
    words = sys.argv[1:]
    if "--fresh" in words:
        words.remove("--fresh")
        shutil.rmtree(BUILD, ignore_errors=True)
    lay_out()
    sphinx = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-j", "auto", "-c", str(DOCS)]
    code = subprocess.run([*sphinx, *words, str(SOURCE), str(HTML)], check=False).returncode
    if code == 0:
        print(f"the site is in {HTML / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
