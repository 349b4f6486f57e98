"""Schemas and templates of files, and the page that describes them."""

import json
from pathlib import Path

import pytest

from helpers.instances import fat_head
from helpers.json_schemas import faults
from helpers.scripts import script
from helpers.shared_data import ROOT
from pipeplan.analysis.sweep.experiment_file import read_experiment
from pipeplan.cli.main import main
from pipeplan.cli.new import TEMPLATES, template
from pipeplan.cli.schema import FILES, schema_of
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.io.cluster_file import read_cluster
from pipeplan.io.job_file import read_job
from pipeplan.io.text import parse_data, read_text
from pipeplan.solve import solve

REWRITE = "run `python scripts/schemas.py`"
SHIPPED = [
    *(
        (file, path)
        for file in ("model", "cluster", "experiment")
        for path in (ROOT / f"datasets/{file}s").glob("*.yaml")
    ),
    ("devices", ROOT / "datasets/devices.yaml"),
]


@pytest.mark.parametrize("file", FILES)
def test_shipped_schemas_are_current(file: str) -> None:
    """The schema beside the datasets is the one of the code."""
    shipped = (ROOT / "datasets" / "schemas" / f"{file}.json").read_text(encoding="utf-8")
    assert json.loads(shipped) == schema_of(file), REWRITE


@pytest.mark.parametrize("file", sorted(set(FILES) - {"devices"}))
def test_the_page_has_a_place_for_the_tables_of_a_file(file: str) -> None:
    """The site fills it with the fields of the schema, each a row of a table."""
    assert f"<!-- fields: {file} -->" in (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    schema = schema_of(file)
    tables = script("scripts/schemas.py").field_tables(schema)
    assert all(f"\n| `{field}` | " in tables for field in schema["properties"])


@pytest.mark.parametrize(("file", "path"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_shipped_files_fit_their_schemas(file: str, path: Path) -> None:
    """Editors find no fault in a file that we ship."""
    schema = schema_of(file)
    assert not list(faults(parse_data(read_text(path), str(path)), schema, schema))


def test_plans_fit_their_schema(tmp_path: Path) -> None:
    """Nor in a plan that we write."""
    solve(fat_head(), Cluster.uniform(2, DeviceKind("unit")), batch=8, time_limit=10).plan.save(tmp_path / "plan.json")
    schema = schema_of("plan")
    assert not list(faults(json.loads((tmp_path / "plan.json").read_text()), schema, schema))


@pytest.mark.parametrize(
    ("file", "data", "fault"),
    [
        ("job", {"batch": 4, "bach": 4}, ".bach: unknown"),
        ("job", {"optimizer": "adam"}, ".batch: missing"),
        ("job", {"batch": 4, "memory": "16 GiB RAM"}, ".memory: none of the alternatives"),
        ("devices", {"v100": {"memory": "16GiB", "speed": 2}}, ".v100.speed: unknown"),
        (
            "experiment",
            {"name": "x", "grids": [{"models": [3], "clusters": [], "jobs": []}]},
            "none of the alternatives",
        ),
    ],
)
def test_schemas_find_faults(file: str, data: object, fault: str) -> None:
    """A schema refuses unknown, missing and malformed fields."""
    schema = schema_of(file)
    assert fault in " ".join(faults(data, schema, schema))


@pytest.mark.parametrize("file", TEMPLATES)
def test_templates_are_valid_as_they_stand(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``new`` writes a file that is read and shown, whose schema exists; it never overwrites one."""
    path = tmp_path / "own.yaml"
    assert main(["new", file, str(path)]) == 0
    {"cluster": read_cluster, "job": read_job, "experiment": read_experiment}[file](path)
    first, text = path.read_text().split("\n", 1)
    assert Path(first.removeprefix("# yaml-language-server: $schema=file://")).is_file()
    schema = schema_of(file)
    assert not list(faults(parse_data(text, "own.yaml"), schema, schema))
    assert main(["show", str(path)]) == 0
    assert main(["new", file, str(path)]) == 2
    assert "is there already, and is not overwritten" in capsys.readouterr().err
    assert path.read_text() == template(file)
    assert main(["new", file, "-"]) == 0
    assert capsys.readouterr().out == template(file)


def test_lines_of_a_job_that_are_commented_out_are_valid() -> None:
    """Each field in the comments of a new job can be taken as it stands."""
    schema = schema_of("job")
    lines = [line.removeprefix("# ") for line in template("job").splitlines()]
    fields = [line for line in lines if line.partition(":")[0] in schema["properties"]]
    assert len(fields) >= 16
    for line in fields:
        data = {"batch": 64} | parse_data(line, "line")
        assert not list(faults(data, schema, schema)), line
