"""`shard`: the frontier of a model on meshes of a cluster's devices, and the fastest choice that fits."""

import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeplan.analysis.sharding.answer import FrontierPoint, Sharded
from pipeplan.analysis.sharding.placements import placements
from pipeplan.analysis.sharding.programme import Solved, fastest
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.errors import InfeasibleError, InputError, PipeplanError
from pipeplan.core.figures import MOST_DEVICES, shown, whole
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.operators import SAMPLE
from pipeplan.core.options import SEED, TIME, WORKERS, asked_limits
from pipeplan.core.strategies import NAMED_STRATEGIES
from pipeplan.core.units import format_bytes
from pipeplan.core.wording import counted, some
from pipeplan.costs.chain import UNLIMITED
from pipeplan.costs.layers import item_size, optimizer_bytes
from pipeplan.costs.sharding.clusters import mesh_of, meshes_of, only_kind, shape_name
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.frontiers import Point, over_meshes
from pipeplan.costs.sharding.joined import JoinedLayers, joined_layers
from pipeplan.costs.sharding.named import on_shape, rows_are_samples, shapes_of
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.products import products
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.unsplit import Unsplit, require_divided, undivided, unsplit
from pipeplan.costs.sources import sources
from pipeplan.solve.question import asked
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import TooLargeError

EXACT = "exact"
"""The back end that finds the whole frontier."""
TIMES = ("forward", "backward", "update", "summed")
"""The coordinates that make up the time of a step of one micro-batch."""


def shard(
    model: Model | str | Path | Any,
    cluster: Cluster | str | Path | None = None,
    batch: int | Job | None = None,
    meshes: str | Sequence[tuple[int, ...] | str] = (),
    *,
    job: Job | None = None,
    time_limit: float = TIME,
    backend: str = EXACT,
    workers: int = WORKERS,
    seed: int = SEED,
    example_inputs: Any = None,
    **options: Any,
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
    meshes : str or sequence of tuple of int
        Devices along each axis, the innermost last, like ``'8x8,4x16'`` or ``((8, 8), (4, 16))``; by default all shapes
        of one and of two axes.
    time_limit : float
        Seconds.
    backend : str
        ``'exact'`` finds the whole frontier of step time and memory; ``'cpsat'`` and ``'cbc'`` solve a mixed-integer
        programme for the fastest choice that fits, and return it with a lower bound.
    workers, seed : int
        Of CP-SAT.
    job, example_inputs, **options
        As in `pipeplan.solve`; of a job's options ``optimizer``, ``memory``, ``extrapolate`` and ``strategy``: then an
        axis of ``meshes`` may have one device, by default they have as many axes as the strategy splits, and the answer
        has the fastest choice of any strategy beside.

    Raises
    ------
    InputError
        If the model cannot be split, or a mesh is none of the cluster's devices.
    InfeasibleError
        If no choice fits the memory.
    PipeplanError
        If no frontier, or no choice, was found in the time given, or the mesh has too many axes for a frontier.

    Notes
    -----
    Choices are those of an operator's loops along each axis, priced by its roofline and the collectives between
    operators; the frontier of time and memory comes from eliminating one operator after the other, as in TensorOpt (Cai
    et al., 2020). AutoDDL chooses between the same signatures along the axes of a mesh. The formulas are in
    ``docs/costs.md``.

    Examples
    --------
    >>> found = pipeplan.shard("gpt2-small", "4-v100-nvlink", 8, "4")
    >>> found.bound <= found.points[found.number].time  # nanoseconds
    True
    """
    began = time.perf_counter()
    limits = asked_limits(time_limit, backend=backend, workers=workers, seed=seed)
    asked_sizes = _sizes(meshes)
    question = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="shard", **options)
    model, cluster, job = question.model, question.cluster, question.job
    _refuse_unheeded(job)
    kind = only_kind(cluster)
    joined = joined_layers(model, kind, job.batch, job.optimizer, job.extrapolate)
    named = _named(cluster, job.strategy, asked_sizes, joined) if job.strategy else []
    shapes = [mesh_of(cluster, sizes) for sizes in asked_sizes if not named] or list(meshes_of(cluster))
    for mesh in shapes if asked_sizes and not named else ():
        require_divided(joined.of, mesh.sizes)
    problems = [MeshProblem(joined, mesh) for mesh in shapes]
    frozen = sum(layer.frozen for layer in model.layers)  # whole on every device
    limit = _limit(kind, job.memory)
    unknown = unsplit(joined.of, shapes[0].team)
    matrix, beside = step_matrix(model.dtype, job.optimizer), None
    if named:
        limits = replace(limits, time=limits.time / 2)
        points, number, _ = _found(problems, matrix, limit - frozen, limits, backend)
        beside = None if number is None else _point(points[number], frozen)
        problems, shapes = named, [problem.mesh for problem in named]
    points, number, bound = _found(problems, matrix, limit - frozen, limits, backend)
    if number is None:
        raise _does_not_fit(shapes, limit, points[-1].costs[1] + frozen, unknown, frozen)
    best = points[number]
    choice = best.choice
    return Sharded(
        model=model.name,
        cluster=cluster.name,
        batch=job.batch,
        optimizer=job.optimizer,
        shapes=tuple(mesh.sizes for mesh in shapes),
        mesh=best.problem.mesh,
        points=tuple(_point(point, frozen) for point in points),
        number=number,
        bound=bound,
        backend=backend,
        limit=None if job.memory is None and kind.memory is None else limit,
        layers=placements(model, best.problem, choice),
        products=products(best.problem, choice, item_size(model.dtype)),
        unsplit=unknown,
        undivided=undivided(joined.of, shapes[0].sizes) if len(asked_sizes) == 1 else (),
        costs=question.stated(sources(model, cluster, (job.batch,))),
        seconds=time.perf_counter() - began,
        strategy=job.strategy,
        beside=beside,
    )


def _point(point: Point | Solved, frozen: int) -> FrontierPoint:
    return FrontierPoint(point.costs[0], point.costs[1] + frozen, point.problem.mesh.sizes)


def _named(
    cluster: Cluster, strategy: str, asked_sizes: Sequence[tuple[int, ...]], joined: JoinedLayers
) -> list[MeshProblem]:
    """Return the problems of a named strategy, on the asked meshes or on those with as many axes as it splits.

    Raises
    ------
    InputError
        If it splits none.
    """
    if asked_sizes:
        every = [own for sizes in asked_sizes for own in on_shape(strategy, sizes)]
    else:
        axes = len(NAMED_STRATEGIES[strategy])
        every = shapes_of(strategy, (mesh.sizes for mesh in meshes_of(cluster, axes)))
    if not every:
        raise InputError(
            f"strategy {strategy} splits meshes of {len(NAMED_STRATEGIES[strategy])} axes, and none of "
            f"{counted(len(cluster.devices), 'device')} fits the nodes of {cluster.name!r}; take another strategy, "
            "or a cluster of as many devices as have such a mesh, like 8"
        )
    samples = max((each.loops.get(SAMPLE, 1) for each in joined.graph.operators), default=1)
    return [
        MeshProblem(joined, mesh_of(cluster, sizes), tokens=not rows_are_samples(sizes, samples), named=own)
        for sizes, own in every
    ]


def _found(
    problems: Sequence[MeshProblem], matrix: NDArray[np.int64], room: int, limits: Limits, backend: str
) -> tuple[Sequence[Point | Solved], int | None, int]:
    """Return the points found, the number of the fastest within ``room`` bytes, and a lower bound on its time.

    The exact back end finds the whole frontier, the others one point. Where none fits, the last point has the least
    memory that was found, and the number is None.
    """
    if backend == EXACT:
        points = _points(problems, matrix, limits.time)
        number = next((k for k, point in enumerate(points) if point.costs[1] <= room), None)
        return points, number, 0 if number is None else points[number].costs[0]
    best = fastest(problems, matrix, room, limits, backend)
    if best is not None:
        return (best,), 0, best.bound
    leanest = fastest(problems, matrix[::-1], UNLIMITED, limits, backend)
    assert leanest is not None, "without a limit some choice fits"
    return (leanest._replace(costs=leanest.costs[::-1]),), None, 0


def _does_not_fit(
    shapes: Sequence[Mesh], limit: int, least: int, unknown: Sequence[Unsplit], frozen: int
) -> InfeasibleError:
    """Error that names the least memory found, and what of it is whole on every device."""
    rigid = sum(own.parameters for own in unknown)
    why = f" ({format_bytes(rigid)} of weights belong to operators that are whole on every device: " * bool(rigid)
    why += f"{some([own.kind for own in unknown if own.parameters])})" * bool(rigid)
    why += f" ({format_bytes(frozen)} of frozen weights are whole on every device)" * bool(frozen)
    return InfeasibleError(
        f"no choice on {' or '.join(shape_name(mesh.sizes) for mesh in shapes)} fits {format_bytes(limit)} a "
        f"device: the least is {format_bytes(least)}{why}; give it more memory, more devices or a smaller batch"
    )


def _sizes(meshes: object) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of meshes, each given as text or as numbers."""
    rows = meshes.split(",") if isinstance(meshes, str) else meshes
    if not isinstance(rows, list | tuple):
        raise InputError(f"meshes {shown(meshes)}: write the devices along each axis, like 8x8 or 2x4x8")
    found = []
    for each in rows:
        sizes = each.split("x") if isinstance(each, str) else each
        if isinstance(each, str) and all(size.isdecimal() and len(size) < 10 for size in sizes):
            sizes = tuple(map(int, sizes))
        if not isinstance(sizes, list | tuple) or not sizes or any(isinstance(size, str) for size in sizes):
            raise InputError(f"mesh {shown(each)}: write the devices along each axis, like 8x8 or 2x4x8")
        found.append(tuple(whole(size, "devices along an axis of a mesh", 1, MOST_DEVICES) for size in sizes))
    return tuple(found)


def _refuse_unheeded(job: Job) -> None:
    """Refuse options of a job that say nothing about one micro-batch on all devices."""
    plain = Job(job.batch, optimizer=job.optimizer, memory=job.memory, extrapolate=job.extrapolate)
    plain = replace(plain, strategy=job.strategy)
    unheeded = [each.name for each in fields(Job) if getattr(job, each.name) != getattr(plain, each.name)]
    if unheeded:
        raise InputError(
            f"shard splits one micro-batch over all devices, so that {' and '.join(unheeded)} would be ignored; leave "
            "them out"
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
            f"the frontier on {names} was not found in {time_limit:g} s; give it more time, name one mesh, or take "
            "--backend cpsat or cbc, which find one choice"
        ) from None
    except TooLargeError:
        raise PipeplanError(
            f"the choices on {names} are too many to be joined exactly; take fewer axes, or --backend cpsat or cbc"
        ) from None


def _limit(kind: DeviceKind, memory: int | None) -> int:
    """Bytes that a device may use for the step."""
    given = [size for size in (kind.memory, memory) if size is not None]
    return max(min(given, default=2**62) - kind.runtime, 0)
