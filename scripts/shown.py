"""Run the commands that pages show with their output: ``python scripts/shown.py PAGE …`` names lines that differ.

A block that begins with ``$ pipeplan`` shows a command and what it prints. There "…" stands for any text, and as a line
of its own for any lines. ``--pictures`` runs the commands whose picture lies in ``docs/``, and replaces it.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def shown(page: str) -> Iterator[tuple[str, list[str]]]:
    """Return the commands of a page, each with the lines that stand below it."""
    for block in re.findall(r"^```\n(\$ pipeplan .*?)^```", page, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            yield command, lines


def printed(command: str, folder: Path) -> str:
    """Return what a command prints on standard output and, behind that, on standard error."""
    words = [sys.executable, "-m", "pipeplan.cli", *shlex.split(command)[1:]]
    wide = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # which pytest may set
    done = subprocess.run(words, cwd=folder, env=wide, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def differing(lines: Sequence[str], text: str) -> list[str]:
    """Return the shown lines that are not printed, in this order."""
    rest, missing = text.splitlines(), []
    for line in lines:
        pattern = re.compile(".*".join(map(re.escape, line.rstrip().split("…"))))
        place = next((i for i, each in enumerate(rest) if pattern.fullmatch(each.rstrip())), None)
        if line.strip() != "…" and place is None:
            missing.append(line)
        elif line.strip() != "…":
            rest = rest[place + 1 :]
    return missing


def of_page(page: Path) -> list[str]:
    """Return the lines of a page that its commands do not print, run one after the other in one folder."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            f"{command}\n    {line}"
            for command, lines in shown(page.read_text(encoding="utf-8"))
            for line in differing(lines, printed(command, Path(folder)))
        ]


def draw(page: Path) -> None:
    """Run the commands of a page whose picture lies in ``docs/``."""
    for command, _ in shown(page.read_text(encoding="utf-8")):
        words = command.split()
        if "--plot" in words and (ROOT / "docs" / words[words.index("--plot") + 1]).exists():
            printed(command, ROOT / "docs")


def main() -> int:
    """Check the pages that are named, or all; or draw their pictures."""
    words = sys.argv[1:]
    if "--pictures" in words:
        for page in PAGES:
            draw(page)
        return 0
    found = {page: of_page(page) for page in (map(Path, words) if words else PAGES)}
    for page, lines in found.items():
        print(*(f"{page}: {line}" for line in lines), sep="\n", end="\n" if lines else "")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
