"""Plant faults one by one and see whether the quick tests notice them.

``python scripts/planted_faults.py`` copies the repository to a temporary folder. For each fault of
``planted_faults.yaml`` it replaces one passage there, runs the quick tests that the fault names until one fails, and
puts the passage back::

    - name: rings over nodes do not share cards
      file: planner/pipeplan/costs/network.py
      old: return shared(network, rings_on_a_card)
      new: return network
      tests: [tests/planner/costs, tests/properties/test_referee.py]

A fault that survives shows what the tests would not notice: write a test for it and its like. All named tests are part
of ``make test``, so a fault that is noticed here is noticed there. Hours if faults survive, so it is run by hand.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
FAULTS = Path(__file__).with_suffix(".yaml")
COPIED = ("planner", "formulations", "executor", "datasets", "tests", "scripts", "docs", "benchmarks")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile")
PACKAGES = {"executor": "pipeplan_executor", "formulations": "pipeplan_formulations", "planner": "pipeplan"}
"""The package of each folder that is copied."""
FAILED, NOT_FOUND, NOTHING_RUN = 1, 4, 5
"""Exit codes of pytest: a test failed; a path does not exist; no test was collected."""


@dataclass(frozen=True)
class Fault:
    """A passage of a file, what it becomes, and the tests that may notice, the likeliest first."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, text: str) -> str:
        """Return the file's text with the fault.

        Raises
        ------
        ValueError
            If the passage is not there exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: the passage stands {count} times in {self.file}, it must stand there once")
        return text.replace(self.old, self.new)


def faults(path: Path = FAULTS) -> list[Fault]:
    """Read the faults of a file."""
    rows = yaml.safe_load(path.read_text())
    return [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def noticed(fault: Fault, tree: Path, limit: float) -> str | None:
    """Return the first test that fails with the fault in a copy of the repository; None if all pass."""
    file = tree / fault.file
    whole = file.read_text()
    file.write_text(fault.planted(whole))
    try:
        return next((failed for test in fault.tests if (failed := _failed(test, tree, limit))), None)
    finally:
        file.write_text(whole)


def _failed(test: str, tree: Path, limit: float) -> str | None:
    """Return the first failure of some tests, or why they did not end; None if they pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *test.split()]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{test} did not end within {limit:.0f} s"
    if done.returncode in (NOT_FOUND, NOTHING_RUN):
        raise ValueError(f"{test}: nothing to run there: {done.stdout[-500:]}{done.stderr[-500:]}")
    if not done.returncode:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0] if lines else done.stdout[-300:]


def copied(folder: Path) -> Path:
    """Copy what the tests need into a folder, and return the copy."""
    tree = folder / "copy"
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    first = tree / "first" / "sitecustomize.py"  # which Python runs behind all .pth files; some put other code first
    first.parent.mkdir()
    first.write_text(f"import sys\n\nsys.path[:0] = {[str(tree / folder) for folder in PACKAGES]}\n")
    _check_imports(tree)
    return tree


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which Python, and all that it starts, imports a copy of the repository."""
    return {**os.environ, "PYTHONPATH": str(tree / "first"), "PYTHONDONTWRITEBYTECODE": "1"}


def _check_imports(tree: Path) -> None:
    """Raise if another code than the copy is imported: all faults would survive."""
    code = "import sys, importlib.util as u; print(*(u.find_spec(name).origin for name in sys.argv[1:]))"
    command = [sys.executable, "-c", code, *PACKAGES.values()]
    done = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=True)
    strangers = [file for file in done.stdout.split() if not Path(file).resolve().is_relative_to(tree.resolve())]
    if strangers:
        raise RuntimeError(f"the copy in {tree} is not what Python imports: {', '.join(strangers)}")


def chosen(every: Sequence[Fault], words: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults whose file or name contains one of the words; all without words."""
    for fault in every:
        if not words or any(word in fault.file or word in fault.name for word in words):
            yield fault


def main() -> None:
    """Plant, test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only the faults whose file or name contains one of these")
    parser.add_argument("--limit", type=float, default=1200, help="seconds for each run of tests")
    given = parser.parse_args()
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        asked = list(chosen(faults(), given.words))
        for number, fault in enumerate(asked, start=1):
            began = time.monotonic()
            by = noticed(fault, tree, given.limit)
            survived += [fault] if by is None else []
            outcome = "SURVIVED" if by is None else f"noticed by {by}"
            print(f"{number}/{len(asked)} {fault.name}: {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(asked) - len(survived)} of {len(asked)} noticed")
    for fault in survived:
        print(f"survived: {fault.name} ({fault.file})")


if __name__ == "__main__":
    main()
