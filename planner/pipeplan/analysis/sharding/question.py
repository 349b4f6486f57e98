"""`shard`: the exact frontier of a model on meshes of a cluster's devices, and the fastest choice that fits."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeplan.analysis.sharding.answer import FrontierPoint, Sharded
from pipeplan.analysis.sharding.placements import placements
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.errors import InfeasibleError, InputError, PipeplanError
from pipeplan.core.figures import real, whole
from pipeplan.core.job import OPTIMIZER_STATE
from pipeplan.core.model import Model
from pipeplan.core.options import LONGEST
from pipeplan.core.units import format_bytes
from pipeplan.core.wording import hint, some
from pipeplan.costs.layers import item_size, optimizer_bytes
from pipeplan.costs.meshes.clusters import mesh_of, meshes_of, only_kind, shape_name
from pipeplan.costs.meshes.frontiers import Point, over_meshes
from pipeplan.costs.meshes.joined import joined_layers
from pipeplan.costs.meshes.problem import MeshProblem
from pipeplan.costs.meshes.products import products
from pipeplan.costs.meshes.unsplit import require_divided, undivided, unsplit
from pipeplan.costs.sources import sources
from pipeplan.costs.teams.problem import COORDINATES
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import TooLargeError

TIMES = ("forward", "backward", "update", "summed")
"""The coordinates that make up the time of a step of one micro-batch."""


def shard(
    model: Model,
    cluster: Cluster,
    batch: int,
    meshes: Sequence[tuple[int, ...]] = (),
    *,
    optimizer: str = "sgd",
    memory: int | None = None,
    extrapolate: bool = False,
    time_limit: float = 60.0,
) -> Sharded:
    """Choose how all devices of a cluster split every operator of a model, for one micro-batch a step.

    Parameters
    ----------
    model : Model
        Its layers form a chain, and their operators are known (profiled, or described on the meta device).
    cluster : Cluster
        Equal nodes of one kind of device.
    batch : int
        Samples in a step, of all devices together.
    meshes : sequence of tuple of int
        Devices along each axis, the innermost last; by default all shapes of one and of two axes.
    optimizer : str
        'sgd', 'momentum' or 'adam'.
    memory : int, optional
        Bytes that a device may use, where that is less than it has.
    extrapolate : bool
        Allow batches outside the measured sizes.
    time_limit : float
        Seconds.

    Raises
    ------
    InputError
        If the model cannot be split, or a mesh is none of the cluster's devices.
    InfeasibleError
        If no choice fits the memory.
    PipeplanError
        If the frontier was not found in the time given, or the mesh has too many axes.
    """
    began = time.perf_counter()
    whole(batch, "the number of samples in a step", 1)
    real(time_limit, "the time limit (seconds)", most=LONGEST)
    if optimizer not in OPTIMIZER_STATE:
        raise InputError(
            f"optimizer {optimizer!r} is not known; choose from {', '.join(OPTIMIZER_STATE)}"
            f"{hint(optimizer, OPTIMIZER_STATE)}"
        )
    kind = only_kind(cluster)
    shapes = [mesh_of(cluster, tuple(sizes)) for sizes in meshes] or list(meshes_of(cluster))
    joined = joined_layers(model, kind, batch, optimizer, extrapolate)
    for mesh in shapes if meshes else ():
        require_divided(joined.of, mesh.sizes)
    problems = [MeshProblem(joined, mesh) for mesh in shapes]
    points = _points(problems, step_matrix(model.dtype, optimizer), time_limit)
    limit = _limit(kind, memory)
    found = [point.costs[1] for point in points]
    unknown = unsplit(joined.of, shapes[0].team)
    if min(found) > limit:
        rigid = sum(own.parameters for own in unknown)
        why = f" ({format_bytes(rigid)} of weights belong to operators that are whole on every device: " * bool(rigid)
        why += f"{some([own.kind for own in unknown if own.parameters])})" * bool(rigid)
        raise InfeasibleError(
            f"no choice on {' or '.join(shape_name(mesh.sizes) for mesh in shapes)} fits {format_bytes(limit)} a "
            f"device: the least is {format_bytes(min(found))}{why}; give it more memory, more devices or a smaller "
            "batch"
        )
    number = next(k for k, needed in enumerate(found) if needed <= limit)
    best = points[number]
    choice = best.choice
    return Sharded(
        model=model.name,
        cluster=cluster.name,
        batch=batch,
        optimizer=optimizer,
        shapes=tuple(mesh.sizes for mesh in shapes),
        mesh=best.problem.mesh,
        points=tuple(FrontierPoint(point.costs[0], point.costs[1], point.problem.mesh.sizes) for point in points),
        number=number,
        limit=None if memory is None and kind.memory is None else limit,
        layers=placements(model, best.problem, choice),
        products=products(best.problem, choice, item_size(model.dtype)),
        unsplit=unknown,
        undivided=undivided(joined.of, shapes[0].sizes) if meshes and len(shapes) == 1 else (),
        costs=sources(model, cluster, (batch,)),
        seconds=time.perf_counter() - began,
    )


def step_matrix(dtype: str, optimizer: str) -> NDArray[np.int64]:
    """Return the combination of coordinates to nanoseconds and bytes of a step.

    Memory is that of weights, gradients, the optimiser's state, and what is kept for the backward.
    """
    item = item_size(dtype)
    bytes_of = {"parameters": 2 + optimizer_bytes(item, dtype, optimizer) // item, "saved": 1}
    return np.array([[int(name in TIMES) for name in COORDINATES], [bytes_of.get(name, 0) for name in COORDINATES]])


def _points(problems: Sequence[MeshProblem], matrix: NDArray[np.int64], time_limit: float) -> tuple[Point, ...]:
    names = " or ".join(shape_name(problem.mesh.sizes) for problem in problems)
    try:
        return over_meshes(problems, matrix, Clock(Limits(time_limit)))
    except OutOfTimeError:
        raise PipeplanError(
            f"the frontier on {names} was not found in {time_limit:g} s; give it more time, or name one mesh"
        ) from None
    except TooLargeError:
        raise PipeplanError(f"the choices on {names} are too many to be joined exactly; take fewer axes") from None


def _limit(kind: DeviceKind, memory: int | None) -> int:
    """Bytes that a device may use for the step."""
    given = [size for size in (kind.memory, memory) if size is not None]
    return max(min(given, default=2**62) - kind.runtime, 0)
