"""What levels of ZeRO that differ from stage to stage could gain over one level for all stages: exhaustively.

Random questions of two to five unlike layers on two to four devices, half of them under a memory limit: all partitions,
replicas, three families, and a level for each replicated stage. From level 2 on, replicas share micro-batches equally.
Where levels differ, or levels 2 and 3 have stages of unequal replicas, replicas do not wait for each other in every
pass here: what these plans would gain at most. Words behind ``--``: how many questions, and the highest level (3).
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, combinations, pairwise, product
from math import inf
from random import Random

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.job import SHARDED, Job, Recompute
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.core.pipeline import Pipeline
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price
from pipeplan.schedules import FAMILIES
from pipeplan.simulate.recurrence import step_time

QUESTIONS = 300


def main() -> None:
    """Print how often unlike levels are faster, and by how much at most."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    asked, highest = (int(word) for word in (*words, *(str(QUESTIONS), "3")[len(words) :]))
    levels = range(highest + 1)
    gains = [gain for seed in range(asked) if (gain := best_gain(Random(seed), levels)) is not None]
    print(
        f"levels 0 to {highest}: {asked} questions, {len(gains)} with a plan that fits: unlike levels are faster in "
        f"{sum(0 < gain < inf for gain in gains)}, by {max((gain for gain in gains if gain < inf), default=0):.3%} at "
        f"most, and only they fit in {gains.count(inf)}"
    )


def best_gain(random: Random, levels: Sequence[int]) -> float | None:
    """The share by which the best plan of one level takes longer than the best of any levels; None if nothing fits.

    Infinite if only plans of unlike levels fit.
    """
    model, cluster, job = question(random)
    one, any_ = None, None
    most = min(len(model.layers), len(cluster.devices))
    for widths in (w for k in range(1, most + 1) for w in product(range(1, len(cluster.devices) + 1), repeat=k)):
        if sum(widths) > len(cluster.devices) or max(widths) > job.batch:
            continue
        edges = pairwise(accumulate(widths, initial=0))
        groups = [tuple(cluster.devices[a:b]) for a, b in edges]
        chains = [price(model, cluster, groups, 1, replace(job, zero=(level,))) for level in levels]
        for cuts in combinations(range(1, len(model.layers)), len(widths) - 1):
            pipelines = [assemble(chain, cluster, (0, *cuts, len(model.layers))) for chain in chains]
            for name, chosen in product(("1f1b-sno", "1f1b-so", "gpipe"), choices(widths, job.batch, levels)):
                held = FAMILIES[name].in_flight(widths, job.batch)
                stages = tuple(pipelines[level].stages[s] for s, level in enumerate(chosen))
                used = {level for level, width in zip(chosen, widths, strict=True) if width > 1} or {0}
                alike = len(used) == 1 and (max(used) < SHARDED or len(set(widths)) == 1)
                mixed = replace(pipelines[0], stages=stages, coupled=alike and max(used) >= SHARDED)
                if not fits(mixed, held):
                    continue
                time = step_time(mixed, job.batch, held)
                any_ = time if any_ is None else min(any_, time)
                if alike:
                    one = time if one is None else min(one, time)
    return None if any_ is None else inf if one is None else one / any_ - 1


def choices(widths: tuple[int, ...], micro_batches: int, levels: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """A level for each stage; stages of one device have nothing to share."""
    shared = [levels if not micro_batches % width else levels[:SHARDED] for width in widths]
    return product(*(own if width > 1 else levels[:1] for own, width in zip(shared, widths, strict=True)))


def fits(pipeline: Pipeline, held: tuple[int, ...]) -> bool:
    """Whether every stage keeps its limit."""
    first = [devices[0] for devices in pipeline.placement]
    need = [s.resident + k * s.held + s.workspace for s, k in zip(pipeline.stages, held, strict=True)]
    return all(bytes_ <= pipeline.limits[device] for bytes_, device in zip(need, first, strict=True))


def question(random: Random) -> tuple[Model, Cluster, Job]:
    """A model, a cluster and a job."""
    layers, devices = random.randint(2, 5), random.randint(2, 4)
    parameters = [random.choice((0, 1, 1, 5, 20)) * random.randint(1, 9) * 4000 for _ in range(layers)]
    slow = random.choice((20, 5))
    costs = []
    for size in parameters:
        time = random.randint(1, 40) * 1000
        costs.append(
            LayerCost(
                forward=time,
                backward=2 * time,
                input_gradient=time,
                weight_gradient=time,
                saved=4000 * random.randint(1, 9),
                output=4000 * random.randint(1, 4),
                update=size // slow,
            )
        )
    chain = tuple(Layer(f"l{i}", size, (f"l{i - 1}",) if i else ()) for i, size in enumerate(parameters))
    model = Model("drawn", chain, (Profile("unit", 1, tuple(costs), Provenance("imported", "made up")),))
    memory = int(random.uniform(0.5, 4) * sum(parameters)) + 30_000 if random.random() < 0.5 else None
    link = Link(random.choice((1, 3, 10, 40)) * 10**8, random.choice((0, 500, 5000)))
    kinds = {"unit": DeviceKind("unit", memory=memory)}
    cluster = Cluster("drawn", kinds, (Node(("unit",) * devices, link),), overlap=Overlap.COPY)
    optimizer = random.choice(("sgd", "adam"))
    return model, cluster, Job(random.randint(devices, 8), optimizer=optimizer, recompute=Recompute.NONE)


if __name__ == "__main__":
    main()
