r"""Problem definition of the joint problem: layers and recomputed layers of each stage, and order of each device.

The best order depends on the partition, and the best partition on the orders. If memory is short, two micro-batches in
flight instead of three may justify stages of unequal length. The partition problem (`partition`) describes orders by
inequalities only; the schedule problem (`schedule`) takes the stages as given. Here both are open. A `Choice` fixes,
for every stage s of a line of S devices,

    b_s, b_{s+1}   the layers b_s … b_{s+1} − 1,
    k_s            the number of micro-batches allowed in flight, from a forward's start to the end of W (or B),
    split_s        True if its backwards are split into I and W.

A choice is feasible if the memory limit of the partition problem holds with k_s in flight. The recomputed layers are
then a set of least forward time; I (or B) takes that much longer. So a choice has an instance of the schedule problem,
in which k_s replaces bytes: a forward takes 1 of k_s, and W (or B) frees it.

*Joint optimum*: minimise, over all feasible choices, the optimum of the choice's schedule problem.

Time in transit of a tensor of transfer time f after an action of time t, with latency l between the stages:

::

    overlap     the action takes     lag after its end
    copy        t                    f + l
    stream      t                    max(0, f − t) + l
    none        t + f                l

Contention of tensors for links is neglected. All times are integers of one unit, all sizes of another.

=============  ===============================================================================================
of             functions
=============  ===============================================================================================
memory limit   `JointPipeline.fitting`, by `partition`
joint optimum  `search.solve`; one choice: `relaxed.scheduled`, `branch.finished`; lower bounds over a box of
               choices: `relaxed.relaxed` (as a schedule problem), `relaxed.chained` (as a partition problem)
lags           `relaxed._instance`
=============  ===============================================================================================
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipeplan_formulations.common.layer_tables import Array, Flags
from pipeplan_formulations.partition import Boundaries, ChainPartition
from pipeplan_formulations.schedule import Orders


class Choice(NamedTuple):
    """Decisions other than the orders; see the module's docstring."""

    boundaries: Boundaries
    in_flight: tuple[int, ...]
    split: tuple[bool, ...]


Solution = tuple[Choice, Orders]


@dataclass(frozen=True, eq=False)
class JointPipeline:
    """One instance of the joint problem.

    Attributes
    ----------
    chain : ChainPartition
        With objective 'step'. Its ``backward`` is the time of I and its ``weight`` that of W; all entries of its
        ``counts`` are the same. Its ``in_flight``, ``warm_up`` and ``alternating`` are not used.
    joined : array of int, shape (S, n)
        Time of the whole backward B of each layer.

    Raises
    ------
    ValueError
        If ``chain`` does not meet these conditions, or shapes disagree.
    """

    chain: ChainPartition
    joined: Array

    def __post_init__(self) -> None:
        chain = self.chain
        if chain.objective != "step" or chain.weight is None or chain.paths:
            raise ValueError("the chain must have objective 'step' and times of weight gradients, and no path cuts")
        if chain.has_roles:
            raise ValueError("orders are those of one stage per device: times ahead and of services are its own")
        if len({count.stage for count in chain.through}) != 1:
            raise ValueError("all stages must have the same number of micro-batches, those of one data-parallel lane")
        if self.joined.shape != chain.forward.shape or int(self.joined.min(initial=0)) < 0:
            raise ValueError(
                f"joined has shape {self.joined.shape}; {chain.forward.shape} times of 0 or more are needed"
            )

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return self.chain.stages

    @property
    def layers(self) -> int:
        """Number of layers n."""
        return self.chain.layers

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches M of one data-parallel lane."""
        return int(self.chain.through[0].stage)

    @cached_property
    def least_backward(self) -> tuple[Array, Array]:
        """Lower bounds on the times of I and W of each layer, valid for split and joined backwards.

        The first is min(I, B), the second the smaller of W and the rest of B. A joined B can be replaced by such a
        pair, which ends no later.
        """
        assert self.chain.weight is not None
        first = np.minimum(self.chain.backward, self.joined)
        return first, np.minimum(self.chain.weight, self.joined - first)

    def passes(self, split: tuple[bool | None, ...]) -> tuple[Array, Array]:
        """Times of I (or B) and W of each layer and stage, (S, n); those of `least_backward` where split is None."""
        assert self.chain.weight is not None
        ways = {
            None: self.least_backward,
            True: (self.chain.backward, self.chain.weight),
            False: (self.joined, np.zeros_like(self.joined)),
        }
        rows = [[ways[own][part][s] for s, own in enumerate(split)] for part in (0, 1)]
        return np.stack(rows[0]), np.stack(rows[1])

    def split_is_free(self, s: int, a: int, b: int) -> bool:
        """True if splitting the backward of layers a … b − 1 on stage s takes no extra time, so it is never worse."""
        assert self.chain.weight is not None
        own = slice(a, b)
        return bool(
            (self.least_backward[0][s, own] == self.chain.backward[s, own]).all()
            and (self.least_backward[1][s, own] == self.chain.weight[s, own]).all()
        )

    @cached_property
    def fitting(self) -> Array:
        """Most micro-batches in flight of every stage and span of layers, 0 if none fits; (S, n + 1, n + 1)."""
        # Flat indices of all (stage, begin, end) with at least one layer.
        most, n = self.micro_batches, self.layers
        s, a, b = np.arange(self.stages)[:, None, None], np.arange(n + 1)[:, None], np.arange(n + 1)
        some = np.broadcast_to(a < b, (self.stages, n + 1, n + 1))
        table = np.zeros(some.shape, np.int64)
        s, a, b = (np.broadcast_to(axis, some.shape)[some] for axis in (s, a, b))
        best = np.zeros(len(s), np.int64)
        if self._fits(most, s, a, b).all():
            best[:] = most
        else:
            # Raise the count until no span fits any more; ``best`` keeps the last count that fits.
            for count in range(1, most + 1):
                fits = self._fits(count, s, a, b)
                best[fits] = count
                if not fits.any():
                    break
        table[some] = best
        return table

    def _fits(self, count: int, s: Array, a: Array, b: Array) -> Flags:
        fits: Flags = self.with_in_flight(count).room.least(s, a, b) <= self.chain.limit[s]
        return fits

    def with_in_flight(self, count: int) -> ChainPartition:
        """Chain with ``count`` micro-batches in flight on every stage, for its memory and recomputation."""
        if count not in self._with_in_flight:
            self._with_in_flight[count] = replace(self.chain, in_flight=np.full(self.stages, count))
        return self._with_in_flight[count]

    @cached_property
    def _with_in_flight(self) -> dict[int, ChainPartition]:
        return {}

    def recomputation(self, s: int, a: int, b: int, count: int) -> int:
        """Least recomputation time of layers a … b − 1 on stage s with ``count`` in flight; they must fit."""
        chosen = self.with_in_flight(count).recompute(s, a, b)
        assert chosen is not None
        return int(self.chain.forward[s, list(chosen)].sum())
