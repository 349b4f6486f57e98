"""Cells of an experiment, in order, and the model, cluster, job and search of each."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path

from pipeplan.analysis.plug_ins import PlugIn
from pipeplan.analysis.sweep.experiment import Experiment, NamedModel, Search, Series
from pipeplan.analysis.sweep.record import job_label
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plug_ins import named
from pipeplan.io.datasets import shipped
from pipeplan.io.importers.pipedream import PROFILED
from pipeplan.io.job_file import job_data
from pipeplan.io.load import load_cluster, load_model


@dataclass(frozen=True, slots=True)
class Cell:
    """One model on one cluster for one job under one search, by name."""

    model: NamedModel
    cluster: str
    job: Job
    search: Search = field(default_factory=Search)
    rung: tuple[str, int] | None = None
    part: str = ""

    @property
    def names(self) -> tuple[str, str]:
        """Names of model and cluster in a row of the table."""
        return self.model.name or _stem(self.model.source), _stem(self.cluster)

    @property
    def label(self) -> str:
        """Name of the cell: ``'vgg-16 on 4-v100-nvlink, batch 256'``."""
        return f"{' on '.join(self.names)}, {job_label(self.job)}"

    @property
    def file(self) -> str:
        """A unique, readable file name."""
        asked = [asdict(self.model), self.cluster, job_data(self.job), asdict(self.search)]
        whole = json.dumps(asked, sort_keys=True)
        digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
        words = "__".join([*self.names, job_label(self.job)])
        readable = re.sub(r"[^A-Za-z0-9.-]+", "_", words)[:100]
        return f"{readable}__{self.search.backend}_{self.search.seed}__{digest}.json"


@dataclass(frozen=True)
class Question:
    """A cell with its files read, and what its caller plugged in; heuristics ``beside`` are always judged."""

    model: Model
    cluster: Cluster
    job: Job
    search: Search = field(default_factory=Search)
    beside: tuple[str, ...] = ()
    plug_ins: tuple[PlugIn, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the answer may depend on, except the program itself."""
        whole: list[object] = [self.model.as_dict(), asdict(self.cluster), asdict(self.job), asdict(self.search)]
        whole += [named(each) for each in self.plug_ins]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


Entry = tuple[NamedModel | Series, str, Job, Search]
"""Model, cluster, job and search of a ladder."""


def ladders(experiment: Experiment, folders: tuple[Path, ...]) -> list[Iterator[Cell]]:
    """The cells in ladders, each cell once, without optional models whose files are missing.

    The next cell of a ladder is solved only if some plan fitted the one before. The order depends on the experiment
    alone, so that shards of it may take every n-th ladder.
    """
    seen: set[str] = set()
    entries: dict[Entry, str] = {}
    for grid in experiment.grids:
        models = [model for model in grid.models if not is_absent(model, folders)]
        for entry in product(models, grid.clusters, grid.jobs, experiment.searches):
            entries.setdefault(entry, grid.part)

    def once(cells: Iterator[Cell]) -> Iterator[Cell]:
        for cell in cells:
            if cell.file not in seen:
                seen.add(cell.file)
                yield cell

    return [once(_members(*entry, part)) for entry, part in entries.items()]


def _members(model: NamedModel | Series, cluster: str, job: Job, search: Search, part: str) -> Iterator[Cell]:
    if isinstance(model, NamedModel):
        yield Cell(model, cluster, job, search, part=part)
        return
    for number in model.numbers():
        yield Cell(model.member(number), cluster, job, search, (model.series, number), part)


def ask(cell: Cell, folders: tuple[Path, ...]) -> Question:
    """Read the cell's files. A relative path is looked for in the folders, in their order.

    Raises
    ------
    InputError
        If a name or file does not exist, or something in it is wrong.
    """
    model = read_model(cell.model, folders)
    return Question(model, read_cluster(cell.cluster, folders), cell.job.of(model), cell.search)


def read_model(named: NamedModel, folders: tuple[Path, ...]) -> Model:
    """Read a model of an experiment; see `ask`."""
    options = {"merge_misbooked": True} if named.merge_misbooked else {}
    model = load_model(_found(named.source, "models", folders), **options)
    return timed_as(model, named.times) if named.times else model


def read_cluster(source: str, folders: tuple[Path, ...]) -> Cluster:
    """Read a cluster of an experiment; see `ask`."""
    return load_cluster(_found(source, "clusters", folders))


def left_out(experiment: Experiment, folders: tuple[Path, ...]) -> list[str]:
    """Sources of the optional models whose files are missing."""
    models = [model for grid in experiment.grids for model in grid.models if is_absent(model, folders)]
    return list(dict.fromkeys(model.source for model in models if isinstance(model, NamedModel)))


def is_absent(model: NamedModel | Series, folders: tuple[Path, ...]) -> bool:
    """Return whether a model is optional, and its file is missing."""
    if isinstance(model, Series) or not model.optional or model.source in shipped("models"):
        return False
    return isinstance(_found(model.source, "models", folders), str) and not Path(model.source).is_file()


def _found(source: str, kind: str, folders: tuple[Path, ...]) -> str | Path:
    """The file in one of the folders; ``source`` itself if it is a name of a dataset, or if nothing was found."""
    if source in shipped(kind):
        return source
    return next((folder / source for folder in folders if (folder / source).is_file()), source)


def _stem(source: str) -> str:
    """File name without folder and suffixes (``'vgg16'`` of ``'folder/vgg16.graph.txt'``); a name stays as it is."""
    path = Path(source)
    return path.name.partition(".")[0] if path.suffix in (".yaml", ".yml", ".json", ".txt") else source


def timed_as(model: Model, kinds: tuple[str, ...]) -> Model:
    """The model, with its imported profile taken as measured on each of these kinds of device.

    Raises
    ------
    InputError
        If it has no profile without a device.
    """
    open_ones = [profile for profile in model.profiles if profile.device == PROFILED]
    if not open_ones:
        known = ", ".join(model.profiled_devices) or "none"
        raise InputError(f"{model.name}: `times` names the device of an imported profile; its profiles are of: {known}")
    named = [replace(profile, device=kind) for kind in kinds for profile in open_ones]
    return replace(model, profiles=(*(p for p in model.profiles if p.device != PROFILED), *named))
