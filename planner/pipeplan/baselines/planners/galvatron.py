"""Galvatron's search: even stages, and a strategy per layer by dynamic programming over whole MiB of memory.

Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism" (VLDB 2023),
from memory. The number of stages S, the replicas and the teams are powers of two, S is one for all layers, and all
devices are used. Blocks are divided evenly over the stages: by their number, the remainder to the last stage, or by
bytes; what is ahead of them and behind them is on the ends. In each stage a programme
over (layers, MiB) chooses a strategy for each layer, so that the stage's time is the least one whose bytes fit. The
best of all counts, by the time of a step with c micro-batches under GPipe's schedule ::

    Σ t_s + (c − 1) max t_s                  t = F + B + recomputation + all-reduce / c

Each layer's bytes are rounded up to MiB, for all c micro-batches; the largest workspace is added as if every layer was
recomputed, once any is.

What differs from the original: the strategies of a layer are to keep what it saves or to be recomputed. Teams split all
layers alike, at one level of ZeRO: this module is asked once for each split and level, and the least value counts.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, takewhile

import numpy as np

from pipeplan.baselines.deadline import check_deadline
from pipeplan.baselines.partitioners.min_max import smallest_maximum
from pipeplan.baselines.partitioners.partitioner import NotApplicable
from pipeplan.baselines.partitioners.uniform import from_blocks
from pipeplan.baselines.planners.even_pipelines import EvenPipeline, even_pipelines
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.chain import UNLIMITED, Array, Boundaries

MIB = 2**20


def least_extra(times: Array, keeps: Array, repeats: Array, room: int) -> int | None:
    """Return the least time of repeated layers whose units of memory, with those of kept ones, fit; None if none do.

    Parameters
    ----------
    times, keeps, repeats : array of int, shape (n,)
        Time to repeat a layer; units that it takes if it is kept, and if it is repeated, no more than those.
    room : int
        Units that there are.
    """
    need = int(keeps.sum()) - room
    if need <= 0:
        return 0
    savings = keeps - repeats
    if need > savings.sum():
        return None
    return _least_time(frozenset(Counter(zip(times.tolist(), savings.tolist(), strict=True)).items()), need)


@lru_cache(maxsize=256)  # most stages hold equal layers
def _least_time(layers: frozenset[tuple[tuple[int, int], int]], need: int) -> int:
    """Return the least time that saves so many units; ``layers``: time and units of some layers, and their number."""
    best = np.full(need + 1, np.iinfo(np.int64).max // 2)  # [u]: least time that saves u units, or need and more
    best[0] = 0
    for (time, saved), number in layers:
        for many in _bundles(number) if saved else ():
            taken, more = best + many * time, many * saved
            best[more:] = np.minimum(best[more:], taken[: max(need + 1 - more, 0)])
            best[need] = min(best[need], taken[max(need - more, 0) :].min())
    return int(best[need])


def _bundles(number: int) -> Iterator[int]:
    """Yield parts of a number of equal layers, 1, 2, 4, … and the rest: some of them make up any smaller number."""
    part = 1
    while number:
        part = min(part, number)
        yield part
        number -= part
        part *= 2


def stage_time(pipeline: EvenPipeline, a: int, b: int) -> float | None:
    """Return the least time of a micro-batch on layers a … b − 1; None if they do not fit."""
    check_deadline()
    spans, held = pipeline.spans, pipeline.held
    extra: int | None = 0
    if spans.room != UNLIMITED:
        keeps, repeats = (-(-held * row[a:b] // MIB) for row in (spans.chain.saved[0], spans.kept))
        stays = int(spans.resident[a, b]) + held * int(spans.received[a])
        plain, rebuilt = ((spans.room - stays - int(peak[a, b])) // MIB for peak in spans.peak)
        if keeps.sum() > plain:
            extra = least_extra(spans.chain.forward[0, a:b], keeps, repeats, rebuilt)
    return None if extra is None else float(spans.work[a, b] + extra + spans.once[a, b] / pipeline.rounds)


def divisions(pipeline: EvenPipeline) -> tuple[Boundaries, ...]:
    """Return the even divisions of blocks: by their number, and by the bytes that they keep."""
    chain, stages = pipeline.spans.chain, len(pipeline.groups)
    blocks = len(chain.blocks) - 1
    if blocks < stages:
        return ()
    starts = [0, *chain.blocks[1:-1]]  # the first block with what is ahead of it
    kept = np.add.reduceat(chain.resident + pipeline.held * chain.saved, starts, axis=1)
    by_bytes = smallest_maximum(np.repeat(kept, stages, axis=0), np.zeros((stages - 1, blocks - 1), np.int64))
    share = blocks // stages
    by_number = from_blocks(chain, [share] * (stages - 1) + [blocks - share * (stages - 1)])
    return (
        (by_number,) if by_bytes is None else (by_number, (*(starts[edge] for edge in by_bytes[1][:-1]), chain.layers))
    )


def arrange(
    model: Model, cluster: Cluster, job: Job, micro_batch: int, below: float = np.inf
) -> tuple[Arrangement, ...]:
    """Return the best even stages on all devices, with a value below a limit in nanoseconds.

    Raises
    ------
    NotApplicable
        If there are none, devices are of several kinds, or their number is no power of two.
    """
    if len(cluster.devices).bit_count() > 1:
        raise NotApplicable(f"Galvatron's degrees are powers of two, and {len(cluster.devices)} devices are not")
    found: tuple[Arrangement, ...] = ()
    for pipeline in even_pipelines("Galvatron", model, cluster, job, micro_batch, below):
        for boundaries in divisions(pipeline):
            times = (stage_time(pipeline, a, b) for a, b in pairwise(boundaries))
            fitting = [time for time in takewhile(lambda time: time is not None, times) if time is not None]
            value = sum(fitting) + (pipeline.rounds - 1) * max(fitting, default=0.0)
            if len(fitting) == len(pipeline.groups) and value < below:
                below = value
                found = (pipeline.arrangement(boundaries, value),)
    if not found:
        raise NotApplicable(
            f"Galvatron has no even stages that fit on all {len(cluster.devices)} devices in micro-batches of "
            f"{micro_batch}"
        )
    return found


PLANNER = BaselinePlanner(
    "galvatron",
    "even stages on equal shares of all devices, and a strategy per layer",
    "Galvatron's search (VLDB 2023), recomputation as strategies of layers; GPipe",
    ("gpipe",),
    arrange,
    lambda model, cluster: 10 * len(cluster.devices) * len(model.layers) ** 2,
    splits=True,
)
