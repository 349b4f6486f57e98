"""Experiment files: read and write `Experiment` as YAML.

::

    name: gpus
    search: {time: 20, gap: 0.01, backend: [cpsat, cbc], seed: [0, 1, 2]}    # a list of values is an axis of all grids
    beside: [data-parallel, bapipe-greedy]       # partitioners and baseline planners to show; all if left out
    grids:
      - part: estimates                            # grids of one part make one table
        models:
          - vgg-16
          - {series: gnmt, first: 16, factor: 2}                   # 16, 32, 64 ... up to the first that does not fit
          - {model: vgg16.graph.txt, name: vgg-16 (measured), times: [v100-16gb], optional: true}
        clusters: [4-v100-nvlink, 4-v100-pcie]
        jobs: [{batch: 256}]

``search`` may also be a list of such mappings, whose searches are put one after another.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from pipeplan.analysis.sweep.experiment import Experiment, Grid, NamedModel, Search, Series
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.job import Job
from pipeplan.core.wording import hint
from pipeplan.io.atomic import write_whole
from pipeplan.io.datasets import shipped
from pipeplan.io.device_file import Number
from pipeplan.io.job_file import JobFile, job_data, job_from_data
from pipeplan.io.schema import Count, Items, Strict, check, listing
from pipeplan.io.series import series_called
from pipeplan.io.text import Line, Row, lean, parse_data, read_text, yaml_text
from pipeplan.search.heuristics import unknown


def _entry(value: object) -> object:
    """Expand a plain word to the entry of the model with that name."""
    return {"model": value} if isinstance(value, str) else value


class ModelEntry(Strict):
    """One model, or with ``series`` a sequence of models."""

    model: str | None = None
    """A name in the datasets, or a file."""
    name: str = ""
    """Name in the table; the model's own if left out."""
    times: Items[str] = ()
    """Kinds of device for which the times of the file's only profile count."""
    merge_misbooked: bool = False
    """PipeDream GNMT: fuse layers with mixed times."""
    optional: bool = False
    """Leave the model out if its file is missing."""
    series: str | None = None
    """Name of a series of models, like gnmt, instead of a model."""
    first: Count | None = None
    """First number of the series."""
    step: Annotated[int, Field(ge=0)] = 0
    """Each number is the one before plus this,"""
    factor: Annotated[int, Field(ge=0)] = 0
    """or times this."""
    last: Count = 1024
    """Largest number."""


class _JobFields:
    """Jobs have the fields of a job file in the JSON Schema; each is read by itself, with its own faults."""

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        JobFile.model_rebuild()
        return JobFile.__get_pydantic_json_schema__(JobFile.__pydantic_core_schema__, handler)


class GridEntry(Strict):
    """One grid."""

    part: str = ""
    """Title; grids with one title share a table."""
    models: Items[Annotated[ModelEntry, BeforeValidator(_entry, json_schema_input_type=str | ModelEntry)]]
    """Models."""
    clusters: Items[str]
    """Names in the datasets, or files."""
    jobs: Items[Annotated[Any, _JobFields()]]
    """Jobs, as in a job file."""


class SearchEntry(Strict):
    """One search; see `pipeplan.analysis.sweep.experiment.Search`."""

    time: Annotated[Number, Field(gt=0)] = 60.0
    """Seconds for each cell."""
    gap: Annotated[Number, Field(ge=0)] = 0.0
    """Relative gap at which a cell stops."""
    backend: str = "cpsat"
    """cpsat, cbc or exact."""
    workers: Count = 1
    """Threads of each search."""
    seed: int = 0
    """Of random choices."""


class ExperimentFile(Strict):
    """The whole file; see `pipeplan.analysis.sweep.experiment.Experiment`."""

    name: str
    """Name of the folder with the results."""
    notes: Items[str] = ()
    """Remarks below the table."""
    search: Any = Field(default_factory=dict)
    """Limits of the search of each cell; a list of values is an axis of all grids."""
    beside: Items[str] = ()
    """Partitioners and baseline planners to show; all if left out."""
    grids: Items[GridEntry]
    """Products of models, clusters and jobs."""


def find_experiment(name_or_path: str | Path) -> Path:
    """Path of an experiment's file, by its name in the datasets or by a path."""
    known = shipped("experiments")
    if isinstance(name_or_path, str) and name_or_path in known:
        return known[name_or_path]
    path = Path(name_or_path)
    try:
        there = path.is_file()
    except OSError:  # a name that is too long
        there = False
    if not there:
        listed = ", ".join(known) or "none"
        text = str(name_or_path)
        raise InputError(
            f"there is no experiment {shown(text)[1:-1]}{hint(text, known)}; known are {listed}; or name a file"
        )
    return path


Faults = Callable[[Experiment], Iterable[str]]
"""More checks of an experiment, or of what could be read of it."""


def read_experiment(path: Path, faults: Faults = lambda _: ()) -> Experiment:
    """Read the experiment of a YAML file.

    Raises
    ------
    InputError
        Naming everything that is wrong, each with its path, and what ``faults`` finds.
    """
    return experiment_from_data(parse_data(read_text(path), str(path)), str(path), faults)


def experiment_from_data(data: Any, where: str, faults: Faults = lambda _: ()) -> Experiment:
    """Build an experiment from plain data; ``where`` names the source in errors."""
    file = check(ExperimentFile, data, where)
    complaints = list(unknown(file.beside))
    searches = tuple(_searches(file.search, complaints))
    grids = [_grid(entry, f"grids[{n}]", complaints) for n, entry in enumerate(file.grids)]
    if not grids:
        complaints.append("grids: empty; list at least one")
    experiment = Experiment(file.name, tuple(grids), searches, file.beside, file.notes)
    complaints += faults(experiment)
    if complaints:
        raise InputError(listing(where, complaints))
    return experiment


def _searches(given: Any, complaints: list[str]) -> Iterator[Search]:
    """Yield the searches of each entry: all combinations of the values of its fields."""
    entries = given if isinstance(given, list) else [given]
    if not entries:
        complaints.append("search: empty; list at least one, or leave it out")
    for n, entry in enumerate(entries):
        path = f"search[{n}]" if isinstance(given, list) else "search"
        if not isinstance(entry, dict):
            complaints.append(f"{path}: expected fields and values, like {{time: 20, seed: [0, 1]}}")
            continue
        axes = [value if isinstance(value, list) else [value] for value in entry.values()]
        complaints += [f"{path}.{name}: empty; list at least one" for name, value in entry.items() if value == []]
        for values in product(*axes):
            try:
                yield _search(dict(zip(entry, values, strict=True)), path)
            except InputError as error:
                complaints.append(str(error))


def _search(data: dict[str, Any], path: str) -> Search:
    file = check(SearchEntry, data, path)
    try:
        return Search(**{name: getattr(file, name) for name in SearchEntry.model_fields})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _grid(entry: GridEntry, path: str, complaints: list[str]) -> Grid:
    models: list[NamedModel | Series] = []
    jobs: list[Job] = []
    for field in ("models", "clusters", "jobs"):
        if not getattr(entry, field):
            complaints.append(f"{path}.{field}: empty; list at least one")
    for n, model in enumerate(entry.models):
        try:
            models.append(_model(model))
        except InputError as error:
            complaints.append(f"{path}.models[{n}]: {error}")
    for n, job in enumerate(entry.jobs):
        try:
            jobs.append(job_from_data(job, f"{path}.jobs[{n}]"))
        except InputError as error:
            complaints.append(str(error))
    return Grid(tuple(models), entry.clusters, tuple(jobs), entry.part)


_OF_A_MODEL = {"model", "name", "times", "merge_misbooked", "optional"}
_OF_A_SERIES = {"series", "first", "step", "factor", "last"}


def _model(entry: ModelEntry) -> NamedModel | Series:
    given = entry.model_fields_set
    if given & _OF_A_MODEL and given & _OF_A_SERIES:
        mixed = sorted(given & _OF_A_MODEL) if "series" in given else sorted(given & _OF_A_SERIES)
        raise InputError(f"{', '.join(mixed)}: an entry is either a model or a series; they have no fields in common")
    if entry.model is not None:
        return NamedModel(entry.model, entry.name, entry.times, entry.merge_misbooked, entry.optional)
    if entry.series is None:
        raise InputError("model: missing; name one, or a series")
    series_called(entry.series)
    if entry.first is None:
        raise InputError("first: missing; say with which number the series begins")
    return Series(entry.series, entry.first, entry.step, entry.factor, entry.last)


def write_experiment(experiment: Experiment, path: Path) -> None:
    """Write an experiment for `read_experiment`, whole or not at all."""
    write_whole(path, yaml_text(experiment_data(experiment)))


def experiment_data(experiment: Experiment) -> dict[str, Any]:
    """Plain data of an experiment, in the layout of its file."""
    searches = [Row(asdict(search)) for search in experiment.searches]
    head = {"name": experiment.name} | lean(notes=list(experiment.notes))
    grids = [
        lean(part=grid.part)
        | {
            "models": [_model_data(model) for model in grid.models],
            "clusters": Line(grid.clusters),
            "jobs": [job_data(job) for job in grid.jobs],
        }
        for grid in experiment.grids
    ]
    search = searches[0] if len(searches) == 1 else searches
    return head | {"search": search} | lean(beside=Line(experiment.beside)) | {"grids": grids}


def _model_data(model: NamedModel | Series) -> str | Row:
    if isinstance(model, Series):
        row = Row(series=model.series, first=model.first, **lean(step=model.step or None, factor=model.factor or None))
        return Row(row, last=model.last)
    extra = lean(
        name=model.name,
        times=Line(model.times),
        merge_misbooked=model.merge_misbooked or None,
        optional=model.optional or None,
    )
    return Row(model=model.source, **extra) if extra else model.source
