"""Cells of an experiment, in order, and the model, cluster and job of each."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pipeplan.analysis.sweep.experiment import Experiment, NamedModel, Search, Series
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.io.datasets import shipped
from pipeplan.io.importers.pipedream import PROFILED
from pipeplan.io.job_file import job_data
from pipeplan.io.load import load_cluster, load_model


@dataclass(frozen=True, slots=True)
class Cell:
    """One model on one cluster for one job, by name."""

    model: NamedModel
    cluster: str
    job: Job
    rung: tuple[str, int] | None = None
    part: str = ""

    @property
    def labels(self) -> tuple[str, str, str]:
        """Names of model, cluster and job in a row of the table."""
        return self.model.name or _stem(self.model.source), _stem(self.cluster), job_label(self.job)

    @property
    def label(self) -> str:
        """Name of the cell: ``'vgg-16 on 4-v100-nvlink, batch 256'``."""
        return "{} on {}, {}".format(*self.labels)

    @property
    def file(self) -> str:
        """A unique, readable file name."""
        whole = json.dumps([asdict(self.model), self.cluster, job_data(self.job)], sort_keys=True)
        digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
        return re.sub(r"[^A-Za-z0-9.-]+", "_", "__".join(self.labels))[:100] + f"__{digest}.json"


@dataclass(frozen=True)
class Question:
    """A cell with its files read."""

    model: Model
    cluster: Cluster
    job: Job

    def fingerprint(self, search: Search) -> str:
        """Hash of everything that the answer may depend on, except the program itself."""
        whole = [self.model.as_dict(), asdict(self.cluster), asdict(self.job), asdict(search)]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def ladders(experiment: Experiment, folders: tuple[Path, ...]) -> list[Iterator[Cell]]:
    """The cells in ladders, each cell once, without optional models whose files are missing.

    The next cell of a ladder is solved only if some plan fitted the one before.
    """
    seen: set[str] = set()

    def once(cells: Iterator[Cell]) -> Iterator[Cell]:
        for cell in cells:
            if cell.file not in seen:
                seen.add(cell.file)
                yield cell

    return [
        once(_members(model, cluster, job, grid.part))
        for grid in experiment.grids
        for model in grid.models
        if not _absent(model, folders)
        for cluster in grid.clusters
        for job in grid.jobs
    ]


def _members(model: NamedModel | Series, cluster: str, job: Job, part: str) -> Iterator[Cell]:
    if isinstance(model, NamedModel):
        yield Cell(model, cluster, job, part=part)
        return
    for number in model.numbers():
        yield Cell(NamedModel(f"{model.series}-{number}"), cluster, job, (model.series, number), part)


def ask(cell: Cell, folders: tuple[Path, ...]) -> Question:
    """Read the cell's files. A relative path is looked for in the folders, in their order.

    Raises
    ------
    InputError
        If a name or file does not exist, or something in it is wrong.
    """
    options = {"merge_misbooked": True} if cell.model.merge_misbooked else {}
    model = load_model(_found(cell.model.source, "models", folders), **options)
    if cell.model.times:
        model = timed_as(model, cell.model.times)
    return Question(model, load_cluster(_found(cell.cluster, "clusters", folders)), cell.job.of(model))


def left_out(experiment: Experiment, folders: tuple[Path, ...]) -> list[str]:
    """Sources of the optional models whose files are missing."""
    models = [model for grid in experiment.grids for model in grid.models if _absent(model, folders)]
    return list(dict.fromkeys(model.source for model in models if isinstance(model, NamedModel)))


def _absent(model: NamedModel | Series, folders: tuple[Path, ...]) -> bool:
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


def job_label(job: Job) -> str:
    """The batch, and all options that differ from the defaults: ``'batch 256, adam, 1f1b-so'``."""
    plain, own = job_data(Job(job.batch)), job_data(job)
    words = [f"batch {job.batch}"]
    for field, value in own.items():
        if plain.get(field) != value:
            said = " ".join(map(str, value)) if isinstance(value, list) else value
            words.append(field if said is True else f"{field} {said}")
    return ", ".join(words)
