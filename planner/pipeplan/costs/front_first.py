"""Front-first sums of a stage: when gradients are ready, how long chunks take, when weights are needed.

::

    r, counted from the begin of the last backward        q, to the end of the next first forward with its updates
    last backward   │ 2 │ 1 │ 0 │                         │u0 0│u1 1│u2 2│
    ready               2   1   0                         0    1    2     needed

Small neighbours are one unit, whose gradients are ready and needed when those of its first layer are. A unit is cut
into equal chunks. Each takes a base time, and its part of the unit's sum. Of what is lost only the half of the sum is
spared in which gradients are added.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, groupby, pairwise

import numpy as np

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.priority import Priority, Send
from pipeplan.costs.chain import Array, Boundaries, Chain
from pipeplan_formulations.priority import Chunks, Order, Sums


@dataclass(frozen=True, eq=False)
class StageSums:
    """The units of a stage that have gradients to sum, in order.

    Attributes
    ----------
    names : tuple of str
        Their first layers with gradients.
    sizes, times : array of int, shape (n,)
        Bytes of gradients, and nanoseconds of their sum without base times.
    ready, needed : array of int, shape (n,)
        As of `Send`.
    base : int
        Nanoseconds that each chunk takes in addition.
    backward, forward : int
        Nanoseconds of the last backward beside which sums may run; of a first forward with all updates.
    lost : tuple of Fraction
        The share of each unit that may be left out.
    """

    names: tuple[str, ...]
    sizes: Array
    times: Array
    ready: Array
    needed: Array
    base: int
    backward: int
    forward: int
    lost: tuple[Fraction, ...] = ()

    def joined(self, most: int) -> "StageSums":
        """Return the sums with neighbours joined, from the last one on, as long as they have at most so many bytes."""
        edges, total = [len(self.names)], 0
        for unit in reversed(range(len(self.names))):
            total += int(self.sizes[unit])
            if total > most and edges[-1] > unit + 1:
                edges.append(unit + 1)
                total = int(self.sizes[unit])
        begins = edges[:0:-1] if edges[-1] == 0 else [0, *edges[:0:-1]]
        return replace(
            self,
            names=tuple(self.names[i] for i in begins),
            sizes=np.add.reduceat(self.sizes, begins),
            times=np.add.reduceat(self.times, begins),
            ready=self.ready[begins],
            needed=self.needed[begins],
        )

    def counts(self, chunk: int) -> Array:
        """Return the number of chunks of each unit, of at most so many bytes."""
        return -(-self.sizes // chunk)

    def sums(self, counts: Array, budget: Fraction = Fraction(0)) -> Sums:
        """Return the sums as if they could be interrupted, with the base times of so many chunks."""
        return Sums(
            self.backward - self.ready,
            self._left + counts * self.base,
            self.forward - self.needed,
            self.times // 2,
            self.sizes,
            budget,
        )

    @property
    def _left(self) -> Array:
        """Nanoseconds of sums without what is lost."""
        if not self.lost:
            return self.times
        spared = [int(half * share) for half, share in zip((self.times // 2).tolist(), self.lost, strict=True)]
        return self.times - np.array(spared, np.int64)

    def chunks(self, counts: Array) -> Chunks:
        """Return the chunks as a problem of their order."""
        times = tuple(
            tuple(b - a + self.base for a, b in pairwise(left * k // count for k in range(count + 1)))
            for left, count in zip(self._left.tolist(), counts.tolist(), strict=True)
        )
        return Chunks(self.backward - self.ready, self.forward - self.needed, times)

    def exposed(self, end: int) -> int:
        """Return by how much the next step is later, if its first forward ends then (`Sums.end`)."""
        return max(end - self.backward - self.forward, 0)

    def least(self, most: Fraction) -> int:
        """Return the least nanoseconds that any units, chunks and order expose, if at most so much of each is lost."""
        problem = replace(self, lost=(most,) * len(self.names)).sums(np.zeros_like(self.sizes))
        return self.exposed(problem.end(problem.times) + self.base)

    def priority(self, chunk: int, problem: Chunks, order: Order) -> Priority:
        """Return the sums of the plan; chunks of a unit that leave one behind the other are one send."""
        place = [0] * len(self.names)
        sends = []
        for layer, run in groupby(order):
            count, first = len(list(run)), place[layer]
            place[layer] += count
            time = sum(problem.times[layer][first : first + count])
            sends.append(Send(self.names[layer], count, int(self.ready[layer]), time, int(self.needed[layer])))
        lost = tuple((name, float(share)) for name, share in zip(self.names, self.lost, strict=False) if share)
        return Priority(chunk, tuple(sends), lost)


def stage_sums(chain: Chain, stage: int, a: int, b: int) -> StageSums | None:
    """Return the sums of a stage on layers a … b − 1; None if it has none."""
    times = chain.reduce[stage, a:b]
    layers = np.flatnonzero(times)
    if not len(layers):
        return None
    first = chain.forward[stage, a:b] + chain.update[stage, a:b]
    ready, needed = (_before(row.tolist()) for row in (chain.hides[stage, a:b], first))
    return StageSums(
        names=tuple(chain.names[a + layer] for layer in layers),
        sizes=chain.parameters[a:b][layers],
        times=times[layers],
        ready=ready[layers],
        needed=needed[layers],
        base=int(chain.reduce_base[stage]),
        backward=int(ready[-1]),
        forward=int(needed[-1]),
    )


def _before(times: Sequence[int]) -> Array:
    """The sums of times ahead of each entry, and of all of them."""
    return np.array([*accumulate(times, initial=0)], np.int64)


def beside(pipeline: Pipeline, chain: Chain, boundaries: Boundaries, exposed: Sequence[int]) -> Pipeline:
    """Return the pipeline of a chain whose stages wait so long for sums that run front layers first.

    What computation loses beside them stands with the updates.
    """
    stages = tuple(
        replace(stage, reduce=late, buckets=(), update=stage.update + int(chain.lost[s, a:b].sum()))
        for s, (stage, late, (a, b)) in enumerate(zip(pipeline.stages, exposed, pairwise(boundaries), strict=True))
    )
    return replace(pipeline, stages=stages)
