"""Passes of a stage whose parameters or gradients are sharded (ZeRO-2 and -3): what waits for which collective.

A *unit* is a layer with parameters, and the layers without any that follow it in the forward, or in the backward. Its
parameters are gathered while the unit before it computes, its gradients are summed while the next one's backward runs.
At level 3 frozen weights are gathered with them, and have no gradients; layers above all trained ones have no backward.

::

    forward, level 3      ▒0▒│━━0━━━│━━1━━━━━│━2━│·····│━━3━━│            one unit is gathered ahead
                             │▒1▒   │▒▒2▒    │▒▒▒3▒▒▒▒▒│

    backward              ▒3▒│━━━3━━━━│━━2━━━│··│━━━1━━━━│━━━0━━━━│▒0▒│   gathered ahead: below; summed behind: above
                             │        │▒▒3▒▒▒▒▒▒│▒▒2▒    │▒▒1▒    │
                             │▒2▒     │     ▒1▒ │   ▒0▒  │        │

Where nothing runs beside a collective, every gather and every sum is simply added. Where computation is slower beside
one, a window is longer by what is lost, and hides only the rest of the collectives. Each is waited for at the end of a
unit, so a program that lets sums run on for longer may be faster.

Layers that share weights are one unit: it is gathered at its first layer in a forward and at its last one in a
backward, stays gathered in between, and is summed at its first one.

A stage waits for the gather of its own first unit in every pass, and for the sum of its own last one, whatever the
layers beside it are. So a pass takes longer than the sum of its layers in any table. `Passes` has the time of a span,
and tables whose sums are at most that, for bounds.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeplan.costs.collectives import lost
from pipeplan_formulations.common.layer_tables import Array


@dataclass(frozen=True)
class Units:
    """Bytes of a model's units, by layer; each array has shape (n,).

    Attributes
    ----------
    first, last : array of int
        Of the units whose first layer, or last one, this is.
    reaching : array of int
        Of the units with layers up to this one and from it on.
    """

    first: Array
    last: Array
    reaching: Array

    @classmethod
    def of(cls, parameters: Array, together: tuple[tuple[int, ...], ...]) -> "Units":
        """Return the units of layers with these bytes of weights. ``together``: layers that share weights."""
        first, last, reaching = parameters.copy(), parameters.copy(), parameters.copy()
        for layers in together:
            own = list(layers)
            first[own] = last[own] = reaching[own] = 0
        for layers in together:
            total = int(parameters[list(layers)].sum())
            first[layers[0]] = last[layers[-1]] = total
            reaching[layers[0] : layers[-1] + 1] += total
        return cls(first, last, reaching)

    def with_buffers(
        self,
        workspace: Array,
        replicas: int,
        at_once: int,
        every: bool,
        gathered: "Units | None" = None,
        returns: NDArray[np.bool_] | None = None,
    ) -> Array:
        """Bytes that a replica needs beside what it holds while each layer computes; shape (n,).

        The largest of four moments counts: a backward with its unit's weights and gradients and its neighbours', a
        forward beside what has been gathered last, the arrival of its unit's weights, which are there twice then, or
        the sum of its unit's gradients, whole, as the own share, and in the parts that the others send at once. A
        neighbour's buffers stay until the next collective, so layers without weights run beside them too. Neighbours
        count also where they are on another stage.

        Parameters
        ----------
        workspace : array of int, shape (n,)
            Bytes that the layer itself needs.
        at_once : int
            Most bytes of a share that a replica sends at once as gradients are summed.
        every : bool
            Weights are gathered in every pass (level 3).
        gathered : Units, optional
            Units with the frozen weights that are gathered beside these; by default there are none.
        returns : array of bool, shape (n,), optional
            Layers that have a backward; by default all.
        """
        weights = gathered or self
        back = np.ones(len(workspace), np.bool_) if returns is None else returns
        before = _latest(weights.last * back) * every
        behind = _latest(self.first[::-1], (weights.first * back)[::-1])[::-1]  # until the backward of a next unit ends
        latest = np.where(weights.first > 0, weights.first, _latest(weights.first))
        arriving = np.maximum(weights.first, weights.last * back) * every
        backward = (behind + before + self.reaching + weights.reaching * every) * back
        forward = weights.reaching * every + latest
        arrival = weights.reaching + arriving + np.maximum(_latest(weights.last), behind * back)
        own, share = self.first, -(-self.first // replicas)
        others = self.reaching - own + (weights.reaching - weights.first) * every
        summing = 2 * own + share + (replicas - 1) * np.minimum(share, at_once) + before + others
        moments = (workspace + np.maximum(backward, forward), arrival * (arriving > 0), summing * (own > 0))
        found: Array = np.maximum.reduce(moments)
        return found


def _latest(sizes: Array, marks: Array | None = None) -> Array:
    """For each entry the last one before it whose mark, by default itself, is above 0; 0 if none is; shape (n,)."""
    marked = sizes if marks is None else marks
    place = np.maximum.accumulate(np.where(marked > 0, np.arange(1, len(sizes) + 1), 0))
    before: Array = np.append(0, sizes)[np.append(0, place[:-1])]
    return before


@dataclass(frozen=True, eq=False)
class Passes:
    """Forward and backward of sharded layers on one replica; each array has shape (n,).

    Attributes
    ----------
    forward, backward : array of int
        Nanoseconds of each layer without collectives.
    gather, gather_again, reduce : array of int
        Nanoseconds to gather the unit whose first layer this is in a forward, or whose last layer in a backward, and to
        sum the gradients of the unit whose first layer this is. What is frozen has no sum, and no second gather where
        it has no backward.
    every : bool
        Parameters are gathered in every pass (level 3), not in the first forward of a step only (level 2).
    speed : float
        Speed of the computation beside collectives, relative to its speed alone; 0 if none run beside it.
    base : int
        Nanoseconds of each collective that do not depend on its bytes: computation beside these loses nothing.
    """

    forward: Array
    backward: Array
    gather: Array
    gather_again: Array
    reduce: Array
    every: bool
    speed: float
    base: int = 0

    def first_forward(self, a: int, b: int) -> int:
        """Nanoseconds by which gathers delay the first forward of layers a … b − 1, if others gather nothing."""
        return 0 if self.every else int(self._forward_waits(a, b).sum())

    def of(self, a: int, b: int) -> tuple[int, int]:
        """Nanoseconds of the forward and the backward of layers a … b − 1 as one stage."""
        forward, backward = int(self.forward[a:b].sum()), int(self.backward[a:b].sum())
        if self.every:
            forward += int(self._forward_waits(a, b).sum())
        return forward, backward + int(self._backward_waits(a, b).sum())

    @cached_property
    def waits(self) -> Array:
        """Nanoseconds for which a forward of all layers waits for each unit's gather."""
        return self._forward_waits(0, len(self.forward))

    @cached_property
    def whole(self) -> tuple[Array, Array]:
        """Nanoseconds of each layer's forward and backward on a single stage."""
        return self._forwards, self.backward + self._backward_waits(0, len(self.forward))

    @cached_property
    def least(self) -> tuple[Array, Array]:
        """Nanoseconds of each layer's forward and backward, whose sums are at most the times of any stage.

        In a forward only the first unit differs from the one of `whole`: it waits longer. Between others, a unit's
        backward waits for a gather of the unit before it and a sum of the unit behind. On the last unit of a stage that
        sum is missing, but its own gather is awaited in full; on the first unit that gather is missing, but its own sum
        is. So of each such pair of neighbours the smaller number counts.
        """
        return self._forwards, self.backward + self._backward_waits(0, len(self.forward), least=True)

    @property
    def _forwards(self) -> Array:
        return self.forward + self.waits if self.every else self.forward

    def _forward_waits(self, a: int, b: int) -> Array:
        gather, units = self.gather[a:b], np.flatnonzero(self.gather[a:b])
        if not self.speed or not len(units):
            return gather
        found = np.zeros_like(gather)
        found[units[0]] = gather[units[0]]
        ahead = np.add.reduceat(self.forward[a:b], units)[:-1]
        found[units[1:]] = np.maximum(gather[units[1:]] - ahead, self._lost[0][a:b][units[1:]])
        return found

    @cached_property
    def _lost(self) -> tuple[Array, Array, Array]:
        """Nanoseconds of computation that is not done beside each gather, each further one and each sum."""
        gather, again, reduce = (
            lost(np.maximum(times - self.base, 0), self.speed)
            for times in (self.gather, self.gather_again, self.reduce)
        )
        return gather, again * self.every, reduce

    def _backward_waits(self, a: int, b: int, least: bool = False) -> Array:
        gather, reduce = self.gather_again[a:b] * self.every, self.reduce[a:b]
        units = np.flatnonzero(self.gather_again[a:b] + reduce)
        if not self.speed or not len(units):
            return gather + reduce
        computed = np.add.reduceat(self.backward[a : a + units[-1] + 1], [0, *(units[:-1] + 1)])
        _, lost_before, lost_behind = (row[a:b] for row in self._lost)
        # In two rows: the times of the collectives beside two neighbours, and what is lost beside them.
        before = np.stack([gather[units[:-1]], lost_before[units[:-1]]])
        behind = np.stack([reduce[units[1:]], lost_behind[units[1:]]])
        found = np.zeros_like(reduce)
        if self.every:
            busy = np.zeros((2, len(units)), np.int64)
            busy[:, 1:] += np.minimum(before, behind) if least else before
            busy[:, :-1] += np.minimum(behind, before) if least else behind
            found[units] = np.maximum(busy[0] - computed, busy[1])
            found[units[-1]] += gather[units[-1]]
        else:
            found[units[1:]] = np.maximum(behind[0] - computed[:-1], behind[1])
        found[units[0]] += reduce[units[0]]
        return found
