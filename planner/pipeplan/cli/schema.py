"""``pipeplan schema``: the JSON Schema of a file, for editors that complete and check it."""

import json
from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Any

from pipeplan.cli.base import Command

FILES = {
    "model": "io.model_file:ModelFile",
    "cluster": "io.cluster_file:ClusterFile",
    "devices": "io.device_file:Catalogue",
    "job": "io.job_file:JobFile",
    "plan": "io.plan_file:PlanFile",
    "experiment": "analysis.sweep.experiment_file:ExperimentFile",
}
"""The schema of every kind of file."""


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``schema``."""
    parser.add_argument("file", metavar="NAME", choices=tuple(FILES), help=", ".join(FILES))


def run(options: Namespace) -> int:
    """Print the schema."""
    print(json.dumps(schema_of(options.file), indent=2))
    return 0


def schema_of(file: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file."""
    from pipeplan.io.schema import json_schema

    module, _, name = FILES[file].partition(":")
    return json_schema(getattr(import_module(f"pipeplan.{module}"), name), f"pipeplan {file}")


command = Command("schema", "the JSON Schema of a file, for editors", configure, run, "cluster")
