"""The shapes on which any order is looked for, and what no order on them undercuts."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from pipeplan.errors import InputError
from pipeplan.search.space import Space
from pipeplan.structure import Groups, structures

MOST = 2_000
"""Shapes of one micro-batch size, each of which is a search of its own."""


def shapes(space: Space, size: int) -> Iterator[Groups]:
    """Every shape for a micro-batch size in which all stages have the same number of replicas.

    Raises
    ------
    InputError
        If there are more than `MOST`.
    """
    job = replace(space.job, equal_replicas=True)
    every = structures(space.cluster, job, len(space.model.layers), space.job.batch // size)
    found = list(islice(every, MOST + 1))
    if len(found) > MOST:
        raise InputError(
            f"schedules 'any' search every shape of stages by itself, and {space.cluster.name} has more than {MOST:,} "
            "of one width; say which are wanted (--depths, --replicas, --order given), or name schedule families"
        )
    yield from found


def floor(space: Space, size: int, groups: Groups) -> int:
    """Nanoseconds: no order on these stages beats it.

    Let w_s be what the layers of stage s take, each on its fastest kind of device, a backward as the shorter of B and
    I + W, and ρ_s how much slower the stage's kind is at least. Its device runs the M micro-batches of a row:
    M ρ_s w_s ≤ T, so M Σ w_s ≤ T Σ 1 / ρ_s.
    """
    kinds = {device.kind.name: device.kind for device in space.cluster.devices}
    work = {}
    for name, kind in kinds.items():
        table = space.prices.table(kind, size)
        work[name] = table.forward + np.minimum(table.backward, table.input_gradient + table.weight_gradient)
    least = np.minimum.reduce(list(work.values()))
    busy = least > 0
    if not busy.any():
        return 0
    slower = {name: float((own[busy] / least[busy]).min()) for name, own in work.items()}
    count = -(-(space.job.batch // size) // len(groups[0]))
    speed = sum(1 / slower[group[0].kind.name] for group in groups)
    return int((1 - 1e-9) * count * int(least.sum()) / speed)  # down, far enough for the float arithmetic before it
