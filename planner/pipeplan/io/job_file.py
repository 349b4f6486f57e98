"""Read and write jobs as YAML.

::

    batch: 512
    optimizer: adam
    memory: 16GiB              # usable bytes of a device, where that is less than it has
    reserve: 5%                # of each device's own memory is left free; or bytes, like 2GiB
    schedules: [1f1b-so]
    replicas: [1, 2, 4]
    recompute: choose          # or none, full
    together: [[embed, head]]
    no_cut_after: [layer1.conv]
    pin: {head: d3}            # a device, or a kind of device
"""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pipeplan.core.errors import InputError
from pipeplan.core.job import Job, Objective
from pipeplan.core.units import parse_reserve
from pipeplan.core.wording import hint
from pipeplan.io.atomic import write_whole
from pipeplan.io.schema import Bytes, Count, Items, Strict, Whole, check, listing, written_bytes
from pipeplan.io.text import Line, lean, parse_data, read_text, yaml_text


def _objective(value: object) -> Objective:
    known = [objective.value for objective in Objective]
    if value not in known:
        raise ValueError(f"{value!r} is not known; choose from {', '.join(known)}{hint(str(value), known)}")
    return Objective(value)


def _reserve(value: Any) -> int | float:
    try:
        return parse_reserve(value)
    except InputError as error:
        raise ValueError(str(error)) from error


class JobFile(Strict):
    """Schema of a job file; see `pipeplan.Job`."""

    describes = Job

    batch: Count
    optimizer: str = ""
    """sgd, momentum or adam: it decides how many bytes of state each parameter has. By default as the model has it."""
    state_bytes: Whole | None = None
    """Bytes kept for each parameter beside weights and gradients, copies included; by default as the optimizer does."""
    gradient_bytes: Count | None = None
    """Bytes in which the gradient of each parameter is kept; by default as the model's number format has it."""
    micro_batches: Items[Count] = ()
    schedules: Items[str] = ()
    depths: Items[Count] = ()
    memory: Bytes | None = None
    reserve: Annotated[int | float, BeforeValidator(_reserve)] = 0
    objective: Annotated[Objective, BeforeValidator(_objective)] = Objective.STEP
    """What to minimise: the step time, the period of steps in a long run, or the load per sample of the bottleneck."""
    extrapolate: bool = False
    replicas: Items[Count] = ()
    equal_replicas: bool = False
    regular: bool = False
    recompute: Literal["none", "choose", "full"] = "choose"
    """Layers whose activations are computed again in the backward: none, those that it takes to fit, or all."""
    zero: Items[Whole] = ()
    zero1: bool | None = None
    """Level 0 or 1 of ZeRO, in older files; `zero` says it now."""
    slices: Items[Count] = ()
    chunks: Items[Count] = ()
    teams: Items[Count] = ()
    unlike_rounds: bool = False
    unlike_teams: bool = False
    sequence_parallel: bool = True
    context_parallel: bool = True
    mesh_axes: Whole = 2
    strategy: Literal["", "2d", "2.5d", "3d"] = ""
    vocabulary_parallel: bool = True
    overlap_reduction: bool = True
    staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """1 lets gradients of a batch be applied while the next one runs; with the objective period."""
    order: Literal["search", "given"] = "search"
    """Whether unlike devices may be taken in any order, or as listed, none left out but the last ones."""
    together: Items[Items[str]] = ()
    no_cut_after: Items[str] = ()
    pin: dict[str, str] = Field(default_factory=dict)
    """Layers, each with the kind of device or the device on which it must lie, like d3."""
    intra_layer: bool = False


def read_job(path: Path) -> Job:
    """Read a job from a YAML file.

    Raises
    ------
    InputError
        Naming every fault with its path.
    """
    return job_from_data(parse_data(read_text(path), str(path)), str(path))


def job_from_data(data: Any, where: str) -> Job:
    """Build a job from plain data; ``where`` names the source in errors."""
    file = check(JobFile, data, where)
    try:
        fields = {field: getattr(file, field) for field in JobFile.model_fields if field != "zero1"}
        if file.zero1 is not None:  # as files had it before other levels were known
            fields["zero"] = (int(file.zero1),)
        return Job(**fields | {"pin": tuple(file.pin.items())})
    except InputError as error:
        raise InputError(listing(where, [str(error)])) from error


def write_job(job: Job, path: Path) -> None:
    """Write a job atomically, as `read_job` reads it."""
    write_whole(path, yaml_text(job_data(job)))


def job_data(job: Job) -> dict[str, Any]:
    """Return the plain data of a job, as in a file: its batch, optimiser and objective, and what is no default."""
    plain, data = Job(job.batch), {"batch": job.batch} | lean(optimizer=job.optimizer)
    data["objective"] = job.objective.value
    for name in JobFile.model_fields:
        implied = name in data or name == "zero1" or (name == "equal_replicas" and job.regular)
        if not implied and (value := getattr(job, name)) != getattr(plain, name):
            data[name] = _written(name, value)
    return data


def _written(name: str, value: Any) -> Any:
    """The value of an option as in a file."""
    if name == "memory" or (name == "reserve" and isinstance(value, int)):
        return written_bytes(value)
    if name == "pin":
        return dict(value)
    if isinstance(value, tuple):
        return [Line(names) for names in value] if name == "together" else Line(value)
    return value.value if isinstance(value, Enum) else value
