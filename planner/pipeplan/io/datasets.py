"""Paths of the shipped data sets: models, clusters and devices as YAML files."""

from pathlib import Path

from pipeplan.core.errors import InputError


def datasets_folder() -> Path:
    """Return ``pipeplan/_datasets`` in an installed wheel, the repository's ``datasets/`` in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "_datasets", here.parents[1] / "datasets"):
        if folder.is_dir():
            return folder
    raise InputError(f"the data that comes with pipeplan is missing beside {here}; install pipeplan again")


def shipped(kind: str) -> dict[str, Path]:
    """Return the files of one kind (``'models'``, ``'clusters'``, ``'experiments'``) by name, sorted by name."""
    return {path.stem: path for path in sorted((datasets_folder() / kind).glob("*.yaml"))}
