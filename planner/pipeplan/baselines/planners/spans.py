"""Times and bytes of every span of layers on some replicas, for planners whose stages are spans."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeplan.baselines.deadline import check_deadline
from pipeplan.core.cluster import Device
from pipeplan.costs.chain import UNLIMITED, Array
from pipeplan.costs.pricing import Prices
from pipeplan_formulations.common.recomputation import Recomputation, shared_recomputation

Real = NDArray[np.float64]

TOGETHER = 256
"""Spans whose layers to recompute are chosen before the deadline is looked at again."""


class Spans:
    """Times and bytes of layers a … b − 1 on each of some replicas of one kind, as arrays [a, b].

    Attributes
    ----------
    none : array of bool
        Where there is no span: b ≤ a.
    room : int
        Bytes that a device has for layers.
    work, repeated : array of int
        Forward and backward of a micro-batch, and the forwards that are run again if all layers are recomputed.
    once : array of int
        Sums of gradients and gathers, once per step.
    resident : array of int
        Bytes that stay, with copies of shared weights.
    held, peak : tuple of two arrays of int
        Bytes per micro-batch in flight, and the largest workspace: nothing recomputed, everything recomputed.
    """

    def __init__(self, prices: Prices, devices: tuple[Device, ...], size: int) -> None:
        chain = prices.chain((devices,), size)
        self.chain, self.layers, again = chain, chain.layers, chain.recomputable
        self.none = np.tri(self.layers + 1, self.layers + 1, 0, dtype=bool)
        self.room = UNLIMITED if chain.limit[0] == UNLIMITED else int(chain.limit[0] - chain.runtime[0])
        self.work = _sums(chain.forward[0] + chain.backward[0])
        self.repeated = _sums(np.where(again, chain.forward[0], 0))
        once = _sums(chain.reduce[0] + chain.gather[0] + chain.lost[0])
        self.once = once + int(chain.reduce_base[0] + chain.gather_base[0]) * (once > 0)
        self.resident = _sums(chain.resident[0])
        for shared in chain.shared:
            holds = np.isin(np.arange(self.layers), shared.layers).astype(np.int64)
            first = np.arange(self.layers) == shared.layers[0]
            copied = (_sums(holds) > 0) & (_sums(first.astype(np.int64)) == 0)
            self.resident = self.resident + int(shared.resident[0]) * copied
        boundary = prices.table(devices[0].kind, size).boundary
        self.received = np.concatenate([[0], boundary, [0]])
        self.kept = np.where(again, np.minimum(chain.output[0], chain.saved[0]), chain.saved[0])
        self.rebuilt = np.where(again, chain.again[0], chain.workspace[0])
        self.held = tuple(_sums(saved) + self.received[:, None] for saved in (chain.saved[0], self.kept))
        self.peak = tuple(_largest(row) for row in (chain.workspace[0], self.rebuilt))

    def need(self, held: int) -> tuple[Array, Array]:
        """Bytes with so many micro-batches in flight: nothing recomputed, everything recomputed."""
        plain, least = (self.resident + held * each + peak for each, peak in zip(self.held, self.peak, strict=True))
        return plain, least

    def least_repeated(self, held: int) -> Real:
        """Least time of forwards that are run again so that a span fits with so many in flight; infinite if none does.

        Each layer is recomputed or not.
        """
        found: Real = np.where(self.need(held)[0] <= self.room, 0.0, np.inf)
        found[self.none] = np.inf
        starts, ends = np.nonzero(np.isinf(found) & ~self.none)
        spare = self.room - (self.resident + held * self.held[0])[starts, ends]
        query = np.full(len(starts), held), spare
        may = self.recomputation.fewest_bytes(starts, ends, query[0]) <= spare if len(starts) else spare > 0
        places = np.flatnonzero(may)
        for first in range(0, len(places), TOGETHER):
            check_deadline()
            some = places[first : first + TOGETHER]
            cost = self.recomputation.least_each(starts[some], ends[some], *(row[some] for row in query))[1]
            found[starts[some], ends[some]] = cost
        return found

    @cached_property
    def recomputation(self) -> Recomputation:
        """The choices of layers to recompute."""
        chain = self.chain
        rows = chain.forward[0], chain.saved[0] - self.kept, chain.workspace[0], self.rebuilt
        return shared_recomputation(*rows, chain.recomputable)


def _sums(row: Array) -> Array:
    before = np.concatenate([[0], np.cumsum(row, dtype=np.int64)])
    spans: Array = before[None, :] - before[:, None]
    return spans


def _largest(row: Array) -> Array:
    found = np.zeros((len(row) + 1, len(row) + 1), np.int64)
    for a in range(len(row)):
        found[a, a + 1 :] = np.maximum.accumulate(row[a:])
    return found
