"""Models folded into super layers: what the devices of plans with several stages each do; see `docs/costs.md`.

A super layer costs what its runs cost together. What depends on the stage that a device runs just now, such as bytes
and the way ahead, is the least over its runs: a relaxation, as the bounds need it (docs/bounds/chain.md). Plans are
priced on the layers of the model itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pipeplan.core.cluster import Cluster
from pipeplan.core.folding import Folding, Laid
from pipeplan.core.job import Job, Objective
from pipeplan.core.layers import Layer, LayerCost, Tie
from pipeplan.core.model import Model
from pipeplan.costs.chain import Array
from pipeplan_formulations.common.layer_tables import sums_before

UNPRICED = LayerCost(0, 0, 0, 0, saved=0, output=0)
"""What profiles of super layers state: they only say for which sizes the model itself has some."""

NOTHING = 2**62
"""More than any layer has."""

USUAL, ANYWAY = 12, 4
"""Most stages of a device that are tried where a job names no numbers; most of them if blocks are left over."""

FILLED = 16
"""Samples of a step for each device with which pipelines stand idle too little to be cut further by default."""


def usual_rounds(model: Model, cluster: Cluster, job: Job) -> tuple[int, ...]:
    """Return the numbers of stages of a device that are searched for a job that names none, one included.

    These are 2, 3, 4 and what divides the blocks of up to `USUAL`, if two devices have blocks for so many, where layers
    repeat, and steps of few samples are asked for in the orders that suit the cluster. A pipeline of single samples
    through all devices stands idle for one in `FILLED` of its time at most if a step has so many for each device; and
    with replicas as long, as each of them has as many samples less as it has devices.
    """
    kinds = {model.layers[first].kind for first in model.blocks[:-1]}
    repeats = len(kinds) == 1 and kinds != {""}
    devices = min(len(cluster.devices), max(job.depths, default=len(cluster.devices)))
    whole = job.objective is Objective.STEP and not job.schedules and not job.intra_layer
    whole = whole and job.batch < FILLED * sum(device.kind.team for device in cluster.devices)
    blocks = len(model.blocks) - 1
    every = range(2, min(blocks // 2, USUAL) + 1) if repeats and whole and devices > 1 else ()
    return (1, *(count for count in every if count <= ANYWAY or blocks % count == 0))


def folded(model: Model, laid: Laid) -> Model | None:
    """Return the model of super layers; None if it has too few layers for so many rounds over two devices."""
    folding = Folding.of(model.blocks, len(model.layers), laid)
    if folding is None or folding.layers < 2:
        return None
    groups = _groups(folding)
    every = model.names
    names = ["+".join(every[a] for a, b in runs if a < b) for runs in groups]
    home = {layer: name for runs, name in zip(groups, names, strict=True) for a, b in runs for layer in every[a:b]}

    def sums(row: Sequence[int]) -> tuple[int, ...]:
        return tuple(sum(sum(row[a:b]) for a, b in runs) for runs in groups)

    trained, frozen = (sums([getattr(each, name) for each in model.layers]) for name in ("parameters", "frozen"))
    sources = [(), *((name,) for name in names[:-1])]
    rows = zip(names, trained, sources, frozen, strict=True)
    layers = tuple(Layer(name, own, source, frozen=fixed) for name, own, source, fixed in rows)
    return replace(
        model,
        layers=layers,
        profiles=tuple(replace(each, costs=(UNPRICED,) * len(layers)) for each in model.profiles),
        slice_profiles=(),
        ties=tuple(_ties(model.ties, home, names)),
        operators={},
        parts={kind: sums(row) for kind, row in model.parts.items()},
        frozen_parts={kind: sums(row) for kind, row in model.frozen_parts.items()},
        folding=folding,
        unfolded=model,
    )


def _groups(folding: Folding) -> list[tuple[tuple[int, int], ...]]:
    """The runs of each super layer."""
    return list(zip(*map(folding.runs, range(folding.rounds)), strict=True))


def _ties(ties: Sequence[Tie], home: dict[str, str], names: Sequence[str]) -> Iterator[Tie]:
    """Yield the ties between super layers, as far as they lie behind that of the first layer, whose weights they are.

    Those inside one need no copies. Copies that lie before it, as where a later round begins, are left out.
    """
    for tie in ties:
        first, *rest = (names.index(home[layer]) for layer in tie.layers)
        own = [names[i] for i in sorted({first, *(i for i in rest if i > first)})]
        if len(own) > 1:
            yield replace(tie, layers=tuple(own))


def total(folding: Folding, layers: Array) -> Array:
    """Return what all runs of each super layer have together, given what the layers have, the last axis."""
    found: Array = of_rounds(folding, layers).sum(axis=0)
    return found


def least(folding: Folding, layers: Array) -> Array:
    """Return what a run of each super layer has, the least over the rounds; of unlike rounds the mean, rounded down."""
    every = of_rounds(folding, layers)
    found: Array = every.sum(axis=0) // folding.rounds if folding.laid.unlike else every.min(axis=0)
    return found


def way_ahead(folding: Folding, layers: Array) -> Array:
    """Return times of the way through a round before a super layer, or behind one, no more than those of any round.

    In a V they are those of the first round, of rounds that are cut alike the least of each super layer. Of others what
    is before each boundary is the least of any round, up to the least that is before and behind one together.
    """
    every = of_rounds(folding, layers)
    if folding.laid.turns or not folding.laid.unlike:
        first: Array = every[0] if folding.laid.turns else every.min(axis=0)
        return first
    before = sums_before(every)
    behind = before[..., -1:] - before
    most = (before.min(axis=0) + behind.min(axis=0)).min(axis=-1, keepdims=True)
    found: Array = np.diff(np.minimum(before.min(axis=0), most))
    return found


def least_largest(folding: Folding, layers: Array) -> Array:
    """Return the most that a layer of a run has, the least over the rounds that have one."""
    rows = []
    for number, edges in enumerate(map(np.array, folding.edges)):
        most = np.maximum.reduceat(np.append(layers, 0), edges)[:-1]  # of another run's layer where one has none
        own = np.where(np.diff(edges) > 0, most, NOTHING)
        rows.append(own[::-1] if folding.returns(number) else own)
    found: Array = np.minimum.reduce(rows)
    return found


def of_rounds(folding: Folding, layers: Array) -> Array:
    """Return what each run has together, shape (rounds, …, super layers), given what the layers have, shape (…, n)."""
    sums = np.diff(sums_before(layers)[..., np.array(folding.edges)])
    found: Array = np.moveaxis(sums, -2, 0)
    for number in filter(folding.returns, range(folding.rounds)):
        found[number] = found[number, ..., ::-1].copy()
    return found


def first_to_run(folding: Folding, layers: Array) -> Array:
    """Return what the first layer of each run has, shape (rounds, super layers).

    Sums of the first layers of round 0 are those that the fewest backwards hide: none of their own run, and none of a
    later round. What is left of them with all backwards before them is left of all sums of the device at least. Gathers
    of each round are hidden by their own forwards, so those of the first layers of all runs are left.
    """
    rows = ([layers[a] if a < b else 0 for a, b in folding.runs(number)] for number in range(folding.rounds))
    found: Array = np.array(list(rows), np.int64)
    return found


def least_crossing(folding: Folding, crossing: Array) -> Array:
    """Return the bytes over each cut of super layers, the least over the rounds, given those over all cuts.

    Where a round turns, what a device sends on comes back to it.
    """
    found: Array = np.minimum.reduce([crossing[folding.cuts(number)] for number in range(folding.rounds)])
    return found
