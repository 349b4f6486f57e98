"""Structure of the packages: allowed imports, modules loaded by an import."""

import ast
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from helpers.shared_data import ROOT

PACKAGES = {
    "pipeplan": ROOT / "planner" / "pipeplan",
    "pipeplan_formulations": ROOT / "formulations" / "pipeplan_formulations",
    "pipeplan_executor": ROOT / "executor" / "pipeplan_executor",
}
BELOW = {
    "pipeplan_formulations": set(),
    "pipeplan": {"pipeplan_formulations"},
    "pipeplan_executor": {"pipeplan", "pipeplan_formulations"},
}
"""The packages that a package may import."""

ROOMS: dict[str, dict[str, set[str]]] = {
    "pipeplan": {
        "core": set(),
        "frontend": {"core"},
        "schedules": {"core"},
        "costs": {"core"},
        "simulate": {"core", "schedules"},
        "io": {"core", "simulate"},
        "baselines": {"core", "costs"},
        "search": {"core", "schedules", "costs", "simulate", "baselines"},
        "fpga": {"core", "schedules", "costs", "simulate", "baselines", "search"},
        "solve": {"core", "schedules", "costs", "frontend", "simulate", "io", "search", "fpga"},
        "analysis": {"core", "schedules", "costs", "simulate", "io", "baselines", "search", "fpga", "solve"},
        "report": {"core", "costs", "io", "search", "analysis"},
        "cli": {
            "core",
            "frontend",
            "schedules",
            "costs",
            "simulate",
            "io",
            "baselines",
            "search",
            "solve",
            "analysis",
            "report",
        },
    },
    "pipeplan_formulations": {
        "common": set(),
        "partition": {"common"},
        "graph": {"common"},
        "schedule": {"common"},
        "sharding": {"common"},
        "slicing": {"common"},
        "priority": {"common"},
        "fractional": {"common", "partition"},
        "allocation": {"common", "partition", "graph"},
        "joint": {"common", "partition", "schedule"},
    },
    "pipeplan_executor": {
        "zoo": set(),
        "processes": set(),
        "sharding": set(),
        "stages": {"sharding"},
        "runtime": {"stages", "sharding"},
        "optim": {"runtime", "stages", "sharding"},
        "checkpoint": {"stages", "sharding", "runtime", "optim"},
        "train": {"processes", "stages", "sharding", "runtime", "optim", "checkpoint"},
        "calibrate": {"zoo", "processes", "sharding", "stages", "runtime", "train"},
        "cli": {"processes", "train", "calibrate"},
    },
}
"""The folders of each package, lowest first, and the folders that each may import."""

ONLY_IN = {
    "torch": ("pipeplan.frontend", "pipeplan_executor", "pipeplan.cli.doctor"),
    "matplotlib": ("pipeplan.report",),
    "plotly": ("pipeplan.report",),
    "pydantic": ("pipeplan.io", "pipeplan.analysis"),
    "yaml": ("pipeplan.io", "pipeplan.analysis"),
}
"""Folders in which a third-party package may be imported."""


def _modules() -> dict[str, Path]:
    """Every module of the three packages by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imported(path: Path) -> Iterator[str]:
    """Most exact names of the modules that a file imports, inside functions and under ``TYPE_CHECKING`` too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute here"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)


IMPORTS: Mapping[str, set[str]] = {name: set(_imported(path)) - {name} for name, path in MODULES.items()}


def _room(module: str) -> str:
    """The second part of a module's name; empty for a package itself."""
    return module.split(".")[1] if "." in module else ""


def test_a_newcomer_sees_few_rooms() -> None:
    """Every entry of a package has its line in the table, with at most 14 in the planner, 11 in the executor."""
    for package, folder in PACKAGES.items():
        entries = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert entries == {"__init__", *ROOMS[package]}
    assert len(ROOMS["pipeplan"]) + 1 <= 14
    assert len(ROOMS["pipeplan_executor"]) + 1 <= 11


def test_the_table_has_no_circle() -> None:
    """Each line of the table allows only imports of lines above it."""
    for rooms in ROOMS.values():
        seen: set[str] = set()
        for room, below in rooms.items():
            assert below <= seen, f"{room} may import {below - seen}, which the table lists later"
            seen.add(room)


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_run_one_way(package: str) -> None:
    """No module imports a package or folder that the tables do not allow."""
    wrong = []
    for module, names in IMPORTS.items():
        if module.partition(".")[0] != package:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top not in PACKAGES:
                continue
            inside = top == package and (
                not _room(module) or _room(name) in {_room(module), *ROOMS[package][_room(module)]}
            )
            if not inside and top not in BELOW[package]:
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_lines_of_fpgas_are_entered_by_their_front_door() -> None:
    """Only modules of its own import parts of the room of asynchronous lines; others import the room itself."""
    inside = [
        f"{module} imports {name}"
        for module, names in IMPORTS.items()
        for name in names
        if name.startswith("pipeplan.fpga.") and _room(module) != "fpga"
    ]
    assert not inside


def test_no_circle_of_files() -> None:
    """No cycle of files exists, whenever the imports take place."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, names in IMPORTS.items():
        graph[module] = {name for name in names if name in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_packages_from_outside_stay_in_their_rooms() -> None:
    """Torch, matplotlib, pydantic and yaml are imported only where the table says; formulations are mathematics."""
    wrong = [
        f"{module} imports {name}"
        for module, names in IMPORTS.items()
        for name in names
        for rooms in [ONLY_IN.get(name.partition(".")[0])]
        if rooms is not None and not f"{module}.".startswith(tuple(f"{room}." for room in rooms))
    ]
    assert not wrong


FORMULATIONS = [
    name
    for name in MODULES
    if name.startswith("pipeplan_formulations.") and (name.count(".") == 1 or name.endswith(".exact"))
]


def _python(code: str, cwd: Path, path: str = "", arguments: Sequence[str] = ()) -> str:
    command, environment = [sys.executable, "-c", code, *arguments], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_foreign_datasets_package_still_imports(tmp_path: Path) -> None:
    """Run from the repository root, ``import datasets`` finds the installed package of that name, not our folder."""
    stub = tmp_path / "datasets"
    stub.mkdir()
    (stub / "__init__.py").write_text("WHOSE = 'theirs'\n")
    assert _python("import datasets; print(datasets.WHOSE)", cwd=ROOT, path=str(tmp_path)) == "theirs"


@pytest.mark.parametrize(
    "code",
    [
        "import pipeplan\n[getattr(pipeplan, name) for name in pipeplan.__all__]",
        "from pipeplan.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "\n".join(f"import {name}" for name in FORMULATIONS),
    ],
    ids=["import", "help", "formulations"],
)
def test_import_and_help_load_no_heavy_package(code: str, tmp_path: Path) -> None:
    """The planner, ``--help``, and formulations with their exact methods load no solver, torch or matplotlib."""
    heavy = ("torch", "ortools", "pulp", "matplotlib", "plotly")
    check = f"{code}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    assert _python(check, cwd=tmp_path).splitlines()[-1] == "[]"


QUESTION = """
import sys, pipeplan
pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64)
print([name for name in sys.argv[1:] if name in sys.modules])
"""


def test_a_small_question_loads_only_what_it_needs(tmp_path: Path) -> None:
    """No solver, and no method of other questions, whose import would take longer than the search."""
    others = (
        *("pipeplan.fpga", "pipeplan.io.importers.piper", "pipeplan.search.alternatives", "pipeplan.search.any_order"),
        *("pipeplan.search.front_first", "pipeplan.search.graph.node", "pipeplan.search.scheduling"),
        *("pipeplan.simulate.perturbed", "pipeplan.solve.robust", "pipeplan_formulations.allocation.exact"),
        *("pipeplan.costs.sharding.ways", "pipeplan.costs.sharding.joined", "pipeplan.search.nodes.teams"),
        *("pipeplan.search.nodes.aggregate", "pipeplan.search.space.unopened"),
        *(f"pipeplan_formulations.{name}" for name in ("fractional", "graph", "joint", "priority", "schedule")),
        "pipeplan_formulations.sharding",
    )
    heavy = ("torch", "ortools", "pulp", "matplotlib", "plotly", "rich", "multiprocessing")
    assert _python(QUESTION, tmp_path, arguments=(*heavy, *others)) == "[]"


ALONE = """
import importlib, os, sys
import numpy, torch, torch.distributed.tensor  # from outside, once for all
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_can_be_imported_first(package: str) -> None:
    """In a process that has imported none of the others."""
    home = PACKAGES[package]
    names = [
        ".".join(path.relative_to(home.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(home.rglob("*.py"))
        if path.name != "__main__.py"
    ]
    done = subprocess.run([sys.executable, "-c", ALONE, *names], capture_output=True, text=True, check=True)
    assert not done.stdout, done.stdout


def test_datasets_is_data_only() -> None:
    """The datasets folder never becomes a Python package."""
    assert not list((ROOT / "datasets").rglob("__init__.py"))
