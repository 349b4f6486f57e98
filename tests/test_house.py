"""The house itself: which way the arrows run, what the wheel holds, what an import loads."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from helpers.shared_data import ROOT

PACKAGES = {
    "pipeplan": ROOT / "planner" / "pipeplan",
    "pipeplan_formulations": ROOT / "formulations" / "pipeplan_formulations",
    "pipeplan_executor": ROOT / "executor" / "pipeplan_executor",
}
ALLOWED = {
    "pipeplan_formulations": {"pipeplan_formulations"},
    "pipeplan": {"pipeplan", "pipeplan_formulations"},
    "pipeplan_executor": {"pipeplan", "pipeplan_formulations", "pipeplan_executor"},
}
FORMULATIONS = [
    ".".join(("pipeplan_formulations", *path.relative_to(PACKAGES["pipeplan_formulations"]).with_suffix("").parts))
    for pattern in ("*/__init__.py", "*/exact.py")
    for path in sorted(PACKAGES["pipeplan_formulations"].glob(pattern))
]
SOURCES = [(package, path) for package, folder in PACKAGES.items() for path in sorted(folder.rglob("*.py"))]


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def _python(code: str, cwd: Path, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("package", "path"), SOURCES, ids=lambda value: getattr(value, "stem", value))
def test_arrows_run_one_way(package: str, path: Path) -> None:
    """Executor imports planner imports formulations, never the other way round."""
    ours = _imports(path) & set(PACKAGES)
    assert ours <= ALLOWED[package], f"{path} imports {ours - ALLOWED[package]}"


@pytest.mark.parametrize(
    "path", [path for package, path in SOURCES if package == "pipeplan_formulations"], ids=lambda path: path.stem
)
def test_formulations_are_pure_mathematics(path: Path) -> None:
    """Formulations know nothing of torch, YAML or pydantic."""
    assert not _imports(path) & {"torch", "yaml", "pydantic", "rich", "matplotlib"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_three_packages_and_the_data(wheel: Path) -> None:
    """Exactly three top-level packages and the metadata; the datasets inside the planner; types marked."""
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    data = {name.removeprefix("pipeplan/_datasets/") for name in names if name.startswith("pipeplan/_datasets/")}
    expected = {str(path.relative_to(ROOT / "datasets")) for path in (ROOT / "datasets").rglob("*.yaml")}
    assert data == expected
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, it finds its data and solves a problem."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        f"import pipeplan, pathlib; assert pathlib.Path(pipeplan.__file__).is_relative_to({str(site)!r});"
        "model = pipeplan.load_model('vgg-16'); cluster = pipeplan.load_cluster('4-v100-nvlink');"
        "print(len(pipeplan.solve(model, cluster, batch=32, backend='exact', time_limit=20).plan.stages) >= 1)"
    )
    assert _python(code, cwd=tmp_path, path=str(site)) == "True"


def test_a_foreign_datasets_package_still_imports(tmp_path: Path) -> None:
    """Run from the repository root, ``import datasets`` finds the installed package of that name, not our folder."""
    stub = tmp_path / "datasets"
    stub.mkdir()
    (stub / "__init__.py").write_text("WHOSE = 'theirs'\n")
    assert _python("import datasets; print(datasets.WHOSE)", cwd=ROOT, path=str(tmp_path)) == "theirs"


@pytest.mark.parametrize(
    "code",
    [
        "import pipeplan",
        "from pipeplan.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "\n".join(f"import {name}" for name in FORMULATIONS),
    ],
    ids=["import", "help", "formulations"],
)
def test_import_and_help_load_no_heavy_package(code: str, tmp_path: Path) -> None:
    """The planner, ``--help``, and formulations with their exact methods load no solver, torch or matplotlib."""
    heavy = ("torch", "ortools", "pulp", "matplotlib")
    check = f"{code}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    assert _python(check, cwd=tmp_path).splitlines()[-1] == "[]"


def test_datasets_is_data_only() -> None:
    """The datasets folder never becomes a Python package."""
    assert not list((ROOT / "datasets").rglob("__init__.py"))
