"""`load_model` and `load_cluster`: load a shipped data set by name, or a file whose format is recognised."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.model import Model
from pipeplan.core.wording import hint
from pipeplan.io.cluster_file import cluster_from_data
from pipeplan.io.datasets import datasets_folder, shipped
from pipeplan.io.importers import Importer, importers
from pipeplan.io.model_file import model_from_data
from pipeplan.io.series import series_model
from pipeplan.io.text import parse_data, read_text

_FILE_SUFFIXES = {".yaml", ".yml", ".json", ".txt"}
_KINDS = {"grids": "experiment", "schedule": "plan", "layers": "model", "nodes": "cluster", "batch": "job"}
"""Kinds of file by a field that all files of the kind have, and no files of later ones."""


def load_model(name_or_path: str | Path, **options: Any) -> Model:
    """Load a model by its name in the data sets, or from a file.

    Parameters
    ----------
    name_or_path : str or Path
        ``'gpt2-small'``, or a file whose format is recognised by its content: pipeplan's own YAML or JSON, a PipeDream
        ``graph.txt``, a dnn-partitioning JSON, a Piper JSON; or a model of a series, like ``'gnmt-32'``.
    **options
        Options of the importer: ``merge_misbooked`` and ``samples`` for PipeDream, ``corrected`` for the two others.

    Raises
    ------
    InputError
        If there is no such name or file, or the file is invalid; every wrong field is named.

    Examples
    --------
    >>> len(pipeplan.load_model("gnmt-32").layers)
    35
    """
    _require_name(name_or_path, "model")
    made = _from_series(name_or_path)
    if made is not None:
        if options:
            raise InputError(f"{name_or_path} is made by pipeplan and has no option {', '.join(options)}; leave it out")
        return made
    path = _find(name_or_path, "models", "model")
    importer, content = _content(path)
    if importer is not None:
        return _imported(importer, content, path, options)[0]
    if options:
        raise InputError(f"{path} is pipeplan's own format, which has no option {', '.join(options)}")
    _refuse(content, path, "a model", "layers")
    return model_from_data(content, str(path))


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Load a cluster by its name in the data sets, from a file of pipeplan's own, or from a workload file.

    Raises
    ------
    InputError
        If there is no such name or file, or the file is invalid; every wrong field is named.

    Examples
    --------
    >>> len(pipeplan.load_cluster("2x4-v100-10gbit").devices)
    8
    """
    _require_name(name_or_path, "cluster")
    path = _find(name_or_path, "clusters", "cluster")
    importer, content = _content(path)
    if importer is not None:
        cluster = _imported(importer, content, path, {})[1]
        if cluster is None:
            raise InputError(f"{path} is a file of {importer.name}, which names no devices; here a cluster is wanted")
        return cluster
    _refuse(content, path, "a cluster", "nodes")
    return cluster_from_data(content, str(path))


def load_carried_cluster(name_or_path: str | Path, **options: Any) -> Cluster | None:
    """Load the cluster that a model's workload file contains; None if it contains none."""
    if _from_series(name_or_path) is not None:
        return None
    path = _find(name_or_path, "models", "model")
    importer, content = _content(path)
    return None if importer is None else _imported(importer, content, path, options)[1]


def foreign_format(path: Path) -> str | None:
    """Return the name of the importer that recognises a file, like ``'piper'``; None for pipeplan's own formats."""
    importer, _ = _content(path)
    return None if importer is None else importer.name


def file_kind(path: Path) -> str:
    """Return ``'model'``, ``'cluster'``, ``'job'``, ``'plan'``, ``'experiment'`` or ``'devices'``, by a file's content.

    Raises
    ------
    InputError
        If it is none of them.
    """
    importer, content = _content(path)
    if importer is not None:
        return "model"
    if not isinstance(content, dict):
        raise InputError(f"{path} is no file of pipeplan, PipeDream, dnn-partitioning or Piper: it has no fields")
    return next((kind for field, kind in _KINDS.items() if field in content), "devices")


def _from_series(name_or_path: str | Path) -> Model | None:
    """Return the model of a series with this name; None for a shipped model or another path."""
    return None if str(name_or_path) in shipped("models") else series_model(str(name_or_path))


def _content(path: Path) -> tuple[Importer | None, Any]:
    """Return the importer that recognises a file, None for other files, and the file's text or data."""
    text = read_text(path)
    if path.is_relative_to(datasets_folder()):
        return None, parse_data(text, str(path))
    for importer in importers():
        if importer.plain and importer.recognises(text):
            return importer, text
    data = parse_data(text, str(path))
    return next((each for each in importers() if not each.plain and each.recognises(data)), None), data


def _imported(importer: Importer, content: Any, path: Path, options: Mapping[str, Any]) -> tuple[Model, Cluster | None]:
    """Return model and cluster of a file; refuse options that its importer does not have."""
    known = getattr(importer.read, "__kwdefaults__", None) or {}
    for option in options:
        if option not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"this format has no option {option!r}; it has {listed}{hint(option, known)}")
    return importer.read(content, str(path), _stem(path), **options)


def _require_name(name_or_path: object, what: str) -> None:
    """Refuse what is neither text nor a path."""
    if not isinstance(name_or_path, str | Path) or not str(name_or_path):
        raise InputError(f"{shown(name_or_path)} is no name or path of a {what}")


def _find(name_or_path: str | Path, folder: str, what: str) -> Path:
    """Return the path of a shipped name or of a file. Shipped names come first, before folders of the same name."""
    known = shipped(folder)
    text, path = str(name_or_path), Path(name_or_path)
    if isinstance(name_or_path, str) and text in known:
        return known[text]
    try:
        if path.is_file():
            return path
        if path.is_dir():
            raise InputError(f"{text} is a folder; name the {what} file in it")
    except OSError as error:
        raise InputError(f"{shown(text)} is no path of a {what}: {error.strerror}") from error
    if path.suffix in _FILE_SUFFIXES or len(path.parts) > 1:
        raise InputError(f"there is no file {text} (the current folder is {Path.cwd()})")
    listed = f"known are {', '.join(known)}" if known else f"no {folder} came with this installation"
    raise InputError(f"no {what} is called {text!r}{hint(text, known)}; {listed}; or give the path of a file")


def _refuse(data: Any, path: Path, wanted: str, key: str) -> None:
    """Refuse a file of another kind with an error that names its kind, instead of its missing fields."""
    if not isinstance(data, dict) or key in data:
        return
    other = next((kind for field, kind in _KINDS.items() if field in data), None)
    if other is not None:
        raise InputError(f"{path} looks like {'an' if other == 'experiment' else 'a'} {other}; here {wanted} is wanted")


def _stem(path: Path) -> str:
    """Return the workload's name: ``vgg16`` for ``vgg16.graph.txt`` and for ``vgg16/graph.txt``."""
    stem = path.name.split(".")[0]
    return path.resolve().parent.name if stem == "graph" else stem
