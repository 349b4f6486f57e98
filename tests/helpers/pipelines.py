"""Pipelines from a few numbers, with one stage per device."""

from collections.abc import Sequence

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage, Times, Transfer
from pipeplan.costs.chain import UNLIMITED


def line(
    stages: int,
    forward: Times,
    backward: Times,
    *,
    occupancy: int = 0,
    latency: int = 0,
    held: int = 0,
    overlap: Overlap = Overlap.COPY,
    times: Sequence[tuple[int, int]] | None = None,
    resource: str | None = None,
) -> Pipeline:
    """Line of equal stages; ``times`` makes them unequal, ``resource`` makes all transfers share one."""
    each = times or [(forward, backward)] * stages
    ways = [
        tuple((Transfer(1, occupancy, latency, (resource or f"{way} {s}",)),) for s in range(stages - 1))
        for way in ("down", "up")
    ]
    return Pipeline(
        stages=tuple(Stage(f, b, held=held) for f, b in each),
        placement=tuple((s,) for s in range(stages)),
        transfers=ways[0],
        returns=ways[1],
        overlap=overlap,
        runtime=(0,) * stages,
        limits=(UNLIMITED,) * stages,
    )
