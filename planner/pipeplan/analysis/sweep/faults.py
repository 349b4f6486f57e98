"""Every fault of an experiment that can be found before its first cell is solved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeplan.analysis.sweep.cells import Cell, is_absent, read_cluster, read_model
from pipeplan.analysis.sweep.experiment import Experiment, Grid, NamedModel, Series
from pipeplan.analysis.sweep.work import error_text
from pipeplan.core.backends import try_backend
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.fpga import require_streams
from pipeplan.io.schema import listing
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits


def require_sound(experiment: Experiment, folders: tuple[Path, ...]) -> None:
    """Refuse an experiment with faults.

    Raises
    ------
    InputError
        Naming all of them.
    """
    found = faults(experiment, folders)
    if found:
        raise InputError(listing(experiment.name, found))


def faults(experiment: Experiment, folders: tuple[Path, ...]) -> list[str]:
    """Faults of back ends, of models and clusters, and of each job asked about them.

    Of a series only the first member is read: the others are made in the same way.
    """
    found: dict[str, list[str]] = {}
    for backend in dict.fromkeys(search.backend for search in experiment.searches):
        state = try_backend(backend)
        if state != "works":
            found[f"backend {backend!r} does not work here ({state}); `pipeplan doctor` says more"] = []
    for grid in experiment.grids:
        _add_faults(grid, folders, found)
    return [f"{_several(labels)}: {text}" if labels else text for text, labels in found.items()]


def _add_faults(grid: Grid, folders: tuple[Path, ...], found: dict[str, list[str]]) -> None:
    """Enter the faults of a grid, each with the labels of the cells that have it."""
    models: dict[NamedModel, Model] = {}
    clusters: dict[str, Cluster] = {}
    for model in grid.models:
        if not is_absent(model, folders):
            named = model.member(model.first) if isinstance(model, Series) else model
            with _noted(found):
                models[named] = read_model(named, folders)
    for source in grid.clusters:
        with _noted(found):
            clusters[source] = read_cluster(source, folders)
    for named, read in models.items():
        for source, cluster in clusters.items():
            for job in grid.jobs:
                with _noted(found, Cell(named, source, job).label):
                    _require_question(read, cluster, job)


def _require_question(model: Model, cluster: Cluster, job: Job) -> None:
    """Refuse a job that contradicts the model or the cluster, and kinds of device on which layers have no costs.

    Splits over teams are not searched for.
    """
    if job.intra_layer:
        require_streams(model, cluster, job)
    kinds = {device.kind.name: device.kind for device in cluster.devices}.values()
    for space in Spaces(model, cluster, job, opening=Clock(Limits())):
        for kind in kinds:
            space.prices.table(kind, space.sizes[0])


@contextmanager
def _noted(found: dict[str, list[str]], *labels: str) -> Iterator[None]:
    """Enter an error as a fault, and go on."""
    try:
        yield
    except Exception as error:  # an importer may fail in any way
        found.setdefault(error_text(error), []).extend(labels)


def _several(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]}, and {len(labels) - 1} more"
