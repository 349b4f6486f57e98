r"""The joint problem: which layers does each stage hold, which are recomputed, and in which order do devices run?

A partition's best order depends on the partition, and the best partition on what orders can do: where memory is short,
two micro-batches in flight instead of three may be worth a stage of unequal length. The partition problem
(`partition`) knows orders by inequalities only, the schedule problem (`schedule`) has its stages given. Here both are
open. A `Choice` fixes, for every stage s of a row of S devices,

    b_s, b_{s+1}   the layers b_s … b_{s+1} − 1,
    k_s            how many micro-batches it may have in flight, from a forward's start to the end of W (or B),
    split_s        whether its backwards are split into I and W.

It is feasible if (1) of the partition problem holds with k_s in flight. The recomputed layers are then a set of least
forward time, which is what an order sees of them: I (or B) takes so much longer. So a choice has an instance of the
schedule problem, in which k_s stands for bytes: a forward takes 1 of k_s, W (or B) frees it,

(13)  minimise, over all feasible choices, the optimum of the choice's schedule problem.

How long a tensor of f is away after an action of t, with latency l between the stages:

::

    overlap     the action takes     lag after its end
    copy        t                    f + l
    stream      t                    max(0, f − t) + l
    none        t + f                l

That wires serve one tensor at a time is left out. All times are integers of one unit, all sizes of another.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipeplan_formulations.common.layer_tables import Array, Flags
from pipeplan_formulations.partition import Boundaries, ChainPartition
from pipeplan_formulations.schedule import Orders


class Choice(NamedTuple):
    """What is decided beside the orders; see the module's text."""

    boundaries: Boundaries
    in_flight: tuple[int, ...]
    split: tuple[bool, ...]


Solution = tuple[Choice, Orders]


@dataclass(frozen=True, eq=False)
class JointPipeline:
    """One instance.

    Attributes
    ----------
    chain : ChainPartition
        With objective 'step'. Its ``backward`` is the time of I and its ``weight`` that of W; all entries of its
        ``counts`` are the same. Its ``in_flight``, ``warm_up`` and ``alternating`` do not matter.
    joined : array of int, shape (S, n)
        Time of the whole backward B of each layer.

    Raises
    ------
    ValueError
        If ``chain`` is another problem than that, or shapes disagree.
    """

    chain: ChainPartition
    joined: Array

    def __post_init__(self) -> None:
        chain = self.chain
        if chain.objective != "step" or chain.weight is None or chain.paths:
            raise ValueError("orders are for objective 'step', with times of weight gradients and without path cuts")
        if len({count.stage for count in chain.through}) != 1:
            raise ValueError("all stages must have the same number of micro-batches; replicas then are rows")
        if self.joined.shape != chain.forward.shape or int(self.joined.min(initial=0)) < 0:
            raise ValueError(
                f"joined has shape {self.joined.shape}; {chain.forward.shape} times of 0 or more are needed"
            )

    @property
    def stages(self) -> int:
        """S."""
        return self.chain.stages

    @property
    def layers(self) -> int:
        """n."""
        return self.chain.layers

    @property
    def micro_batches(self) -> int:
        """M: those of one row of replicas."""
        return self.chain.through[0].stage

    @cached_property
    def quick(self) -> tuple[Array, Array]:
        """Times of I and W that no backward of a layer undercuts, whether it is split or joined.

        min(I, B), and of W what fits into B behind it: a joined B may be seen as such a pair, which is done no later.
        """
        assert self.chain.weight is not None
        first = np.minimum(self.chain.backward, self.joined)
        return first, np.minimum(self.chain.weight, self.joined - first)

    def passes(self, split: tuple[bool | None, ...]) -> tuple[Array, Array]:
        """Times of I (or B) and W of each layer and stage, (S, n); those of `quick` where ``split`` is None."""
        assert self.chain.weight is not None
        ways = {
            None: self.quick,
            True: (self.chain.backward, self.chain.weight),
            False: (self.joined, np.zeros_like(self.joined)),
        }
        rows = [[ways[own][part][s] for s, own in enumerate(split)] for part in (0, 1)]
        return np.stack(rows[0]), np.stack(rows[1])

    def costless(self, s: int, a: int, b: int) -> bool:
        """Whether splitting stage s on the layers a … b − 1 takes no longer than not to, so that it is never worse."""
        assert self.chain.weight is not None
        own = slice(a, b)
        return bool(
            (self.quick[0][s, own] == self.chain.backward[s, own]).all()
            and (self.quick[1][s, own] == self.chain.weight[s, own]).all()
        )

    @cached_property
    def fitting(self) -> Array:
        """For every stage and span of layers the most micro-batches in flight, 0 where none fits; (S, n + 1, n + 1)."""
        most, n = self.micro_batches, self.layers
        s, a, b = np.arange(self.stages)[:, None, None], np.arange(n + 1)[:, None], np.arange(n + 1)
        some = np.broadcast_to(a < b, (self.stages, n + 1, n + 1))
        table = np.zeros(some.shape, np.int64)
        s, a, b = (np.broadcast_to(axis, some.shape)[some] for axis in (s, a, b))
        best = np.zeros(len(s), np.int64)
        if self._fits(most, s, a, b).all():
            best[:] = most
        else:
            for count in range(1, most + 1):
                fits = self._fits(count, s, a, b)
                best[fits] = count
                if not fits.any():
                    break
        table[some] = best
        return table

    def _fits(self, count: int, s: Array, a: Array, b: Array) -> Flags:
        fits: Flags = self.holding(count).room.least(s, a, b) <= self.chain.limit[s]
        return fits

    def holding(self, count: int) -> ChainPartition:
        """The chain with so many micro-batches in flight on every stage: what memory and recomputation are then."""
        if count not in self._holding:
            self._holding[count] = replace(self.chain, in_flight=np.full(self.stages, count))
        return self._holding[count]

    @cached_property
    def _holding(self) -> dict[int, ChainPartition]:
        return {}

    def again(self, s: int, a: int, b: int, count: int) -> int:
        """How much longer a backward takes on these layers with so many in flight; they must fit."""
        chosen = self.holding(count).recompute(s, a, b)
        assert chosen is not None
        return int(self.chain.forward[s, list(chosen)].sum())
