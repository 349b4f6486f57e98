"""`experiment_of`: an experiment from the arguments of `pipeplan.solve`, in which a list is an axis.

::

    models ["vgg-16", "gnmt-8"]   clusters "4-v100-nvlink"   batch [64, 128]   depths (2, 4)      2 x 1 x 2 cells:
                                                                                                  2 or 4 stages in each
"""

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from pipeplan.analysis.sweep.experiment import Experiment, Grid, NamedModel, Search
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.solve.question import JOB, job_of, require_options

SEARCH = {"time_limit": "time", "gap": "gap", "backend": "backend", "seed": "seed"}
"""Options of `pipeplan.solve` that are those of a cell's search, and their names in `Search`."""


def experiment_of(
    name: str, models: Any, clusters: Any, batch: Any, job: Any, options: Mapping[str, Any]
) -> Experiment:
    """Return the experiment of all combinations.

    Parameters
    ----------
    models, clusters
        Names in the datasets or files, one or a list of them.
    batch, job
        Samples of a step, or a job in place of batch and options; one or a list.
    options : mapping
        Fields of `Job`, and those of `SEARCH`; a list of values is an axis, and a tuple is one value.

    Raises
    ------
    InputError
        As `pipeplan.solve` refuses arguments; for models and clusters that are no names or files.
    """
    of_job = {key: value for key, value in options.items() if key not in SEARCH}
    require_options("sweep", of_job, (*JOB, *SEARCH))
    searches = _every({new: options[key] for key, new in SEARCH.items() if options.get(key) is not None})
    jobs = [job_of(each["batch"], each["job"], each["options"]) for each in _jobs(batch, job, of_job)]
    grid = Grid(
        tuple(NamedModel(_source(each, "model")) for each in _row(models)),
        tuple(_source(each, "cluster") for each in _row(clusters)),
        tuple(jobs),
    )
    return Experiment(name, (grid,), tuple(Search(**each) for each in searches))


def _jobs(batch: Any, job: Any, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for own in _row(job):
        for size in _row(batch):
            for each in _every(options):
                yield {"batch": size, "job": own, "options": each}


def _every(axes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All combinations of the values that are lists, with the others as they are."""
    for values in product(*(_row(value) for value in axes.values())):
        yield dict(zip(axes, values, strict=True))


def _row(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _source(value: Any, what: str) -> str:
    if not isinstance(value, str | Path) or not str(value):
        raise InputError(
            f"a sweep needs the name or the file of each {what}, not {shown(value)}, as its cells are solved in "
            "processes of their own; save it to a file"
        )
    return str(value)
