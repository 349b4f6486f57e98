"""`load_model` and `load_cluster`: load a shipped data set by name, or a file whose format is recognised."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.model import Model
from pipeplan.core.wording import hint
from pipeplan.io.cluster_file import cluster_from_data
from pipeplan.io.datasets import shipped
from pipeplan.io.importers.dnn_partitioning import dnn_partitioning_from_data
from pipeplan.io.importers.pipedream import pipedream_from_text
from pipeplan.io.importers.piper import piper_from_data
from pipeplan.io.model_file import model_from_data
from pipeplan.io.series import series_model
from pipeplan.io.text import parse_data, read_text

_PIPEDREAM = re.compile(r"^\S+ -- .* -- forward_compute_time=", re.MULTILINE)
_FILE_SUFFIXES = {".yaml", ".yml", ".json", ".txt"}


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
    """
    made = _from_series(name_or_path)
    if made is not None:
        if options:
            raise InputError(f"{name_or_path} is made by pipeplan and has no option {', '.join(options)}; leave it out")
        return made
    path = _find(name_or_path, "models", "model")
    text = read_text(path)
    if _PIPEDREAM.search(text):
        found: Model = _call(pipedream_from_text, options, text, _stem(path))
        return found
    data = parse_data(text, str(path))
    workload = _workload(data)
    if workload is not None:
        found, _ = _call(workload, options, data, str(path), _stem(path))
        return found
    if options:
        raise InputError(f"{path} is pipeplan's own format, which has no option {', '.join(options)}")
    _refuse(data, path, "a model", "layers")
    return model_from_data(data, str(path))


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Load a cluster by its name in the data sets, from a file of pipeplan's own, or from a workload file.

    Raises
    ------
    InputError
        If there is no such name or file, or the file is invalid; every wrong field is named.
    """
    path = _find(name_or_path, "clusters", "cluster")
    data = parse_data(read_text(path), str(path))
    workload = _workload(data)
    if workload is not None:
        return workload(data, str(path), _stem(path))[1]
    _refuse(data, path, "a cluster", "nodes")
    return cluster_from_data(data, str(path))


def load_carried_cluster(name_or_path: str | Path, **options: Any) -> Cluster | None:
    """Load the cluster that a model's workload file contains; None if it contains none."""
    if _from_series(name_or_path) is not None:
        return None
    path = _find(name_or_path, "models", "model")
    text = read_text(path)
    if _PIPEDREAM.search(text):
        return None
    data = parse_data(text, str(path))
    workload = _workload(data)
    return None if workload is None else _call(workload, options, data, str(path), _stem(path))[1]


def foreign_format(path: Path) -> str | None:
    """Return ``'pipedream'``, ``'dnn-partitioning'`` or ``'piper'`` for their workloads; None for other files."""
    text = read_text(path)
    if _PIPEDREAM.search(text):
        return "pipedream"
    importer = _workload(parse_data(text, str(path)))
    return (
        {dnn_partitioning_from_data: "dnn-partitioning", piper_from_data: "piper"}.get(importer) if importer else None
    )


def _from_series(name_or_path: str | Path) -> Model | None:
    """Return the model of a series with this name; None for a shipped model or another path."""
    return None if str(name_or_path) in shipped("models") else series_model(str(name_or_path))


def _workload(data: Any) -> Callable[..., tuple[Model, Cluster]] | None:
    """Return the importer for data with a model and its devices; None for other data."""
    if isinstance(data, dict) and isinstance(data.get("nodes"), list):
        if "maxFPGAs" in data:
            return dnn_partitioning_from_data
        if "maxDevices" in data:
            return piper_from_data
    return None


def _call(importer: Callable[..., Any], options: dict[str, Any], *arguments: Any) -> Any:
    known = getattr(importer, "__kwdefaults__", None) or {}
    for option in options:
        if option not in known:
            raise InputError(f"this format has no option {option!r}; it has {', '.join(known)}{hint(option, known)}")
    return importer(*arguments, **options)


def _find(name_or_path: str | Path, folder: str, what: str) -> Path:
    """Return the path of a shipped name or of a file. Shipped names come first, before folders of the same name."""
    known = shipped(folder)
    text, path = str(name_or_path), Path(name_or_path)
    if isinstance(name_or_path, str) and text in known:
        return known[text]
    if path.is_file():
        return path
    if path.is_dir():
        raise InputError(f"{text} is a folder; name the {what} file in it")
    if path.suffix in _FILE_SUFFIXES or len(path.parts) > 1:
        raise InputError(f"there is no file {text} (the current folder is {Path.cwd()})")
    listed = f"known are {', '.join(known)}" if known else f"no {folder} came with this installation"
    raise InputError(f"no {what} is called {text!r}{hint(text, known)}; {listed}; or give the path of a file")


def _refuse(data: Any, path: Path, wanted: str, key: str) -> None:
    """Refuse a file of another kind with an error that names its kind, instead of its missing fields."""
    if not isinstance(data, dict) or key in data:
        return
    kinds = {"a plan": "schedule", "a model": "layers", "a cluster": "nodes", "a job": "batch"}
    other = next((kind for kind, field in kinds.items() if field in data), None)
    if other is not None:
        raise InputError(f"{path} looks like {other}; here {wanted} is wanted")


def _stem(path: Path) -> str:
    """Return the workload's name: ``vgg16`` for ``vgg16.graph.txt`` and for ``vgg16/graph.txt``."""
    stem = path.name.split(".")[0]
    return path.resolve().parent.name if stem == "graph" else stem
