"""Options of a stage that trade time for memory, for a span of layers and a number of micro-batches in flight.

A stage may run in several ways, for example with some of its layers recomputed. Each way is an option: it costs extra
time per micro-batch, and changes the bytes of a device by ``fixed + k · held + peak`` for k micro-batches in flight,
relative to a stage without options and without workspace::

    bytes │ ○                             ○  a point: one option, or one choice of an option per layer
          │    ○                          ╌  the bytes that the device's limit leaves: the first point below it has the
          │╌╌╌╌╌╌╌╌○╌╌╌╌╌╌╌╌╌╌╌╌          least extra time that fits
          │             ○
          └─────────────────── extra time

`SpanOptions` is the interface for the spans of a chain, in arrays. Recomputation is one provider
(`pipeplan_formulations.common.recomputation`). Another provider implements `SpanOptions.points` and
`SpanOptions.choose`, and overrides the other methods if it can compute them faster.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.span_knapsack import SpanLargest

Array = NDArray[np.int64]

AT_ONCE = 2**20
"""Largest number of entries of a table for many queries."""
IMPOSSIBLE = 2**61
"""Extra time where no option fits. Two of them still fit into int64."""


@dataclass(frozen=True)
class OptionPoints:
    """Options of one stage.

    Attributes
    ----------
    time : array of int, shape (lines, points)
        Extra time per micro-batch, on each line that loads a stage; ascending if there is one line.
    fixed, held, peak : array of int, shape (points,)
        Bytes that stay, bytes per micro-batch in flight, and bytes needed temporarily; the first two may be negative.
    """

    time: Array
    fixed: Array
    held: Array
    peak: Array

    def bytes(self, in_flight: Array) -> Array:
        """Bytes of each point with k micro-batches in flight; ``in_flight`` broadcasts with the points."""
        need: Array = self.fixed + self.peak + in_flight * self.held
        return need

    def cheapest(self, in_flight: Array, spare: Array) -> tuple[Array, Array]:
        """Extra time and index of the first point that fits, for m queries; `IMPOSSIBLE` and 0 if none does."""
        time, chosen = np.full(len(spare), IMPOSSIBLE), np.zeros(len(spare), np.int64)
        few = max(1, AT_ONCE // len(self.held))
        for low in range(0, len(spare), few):
            part = slice(low, low + few)
            fits = self.bytes(in_flight[part, None]) <= spare[part, None]
            first = chosen[part] = fits.argmax(axis=1)
            time[part] = np.where(fits[np.arange(len(first)), first], self.time[0, first], IMPOSSIBLE)
        return time, chosen


class SpanOptions(ABC):
    """Options of a stage on any span of layers; stages with equal options share an instance.

    Queries are m spans of layers start … end − 1, given as ``starts`` and ``ends``, with k ≥ 1 micro-batches in flight
    and the ``spare`` bytes that ``fixed + k · held + peak`` may take.

    Attributes
    ----------
    workspace : SpanLargest
        Peak of the point without extra time; its fixed and held are 0.
    """

    workspace: SpanLargest

    @abstractmethod
    def points(self, start: int, end: int) -> OptionPoints:
        """Options of a span by extra time, on one line; that of the first is 0."""

    @abstractmethod
    def choose(self, start: int, end: int, in_flight: int, spare: int) -> tuple[int, ...] | None:
        """The layers of the span that the cheapest option that fits changes; None if nothing fits."""

    def chosen_time(self, start: int, end: int, in_flight: int, spare: int) -> int:
        """Extra time of the option that `choose` takes; `IMPOSSIBLE` if nothing fits."""
        return int(self.least(start, end, np.array([in_flight]), np.array([spare]))[1][0])

    def least(self, start: int, end: int, in_flight: Array, spare: Array) -> tuple[Array, Array]:
        """Least extra time of an option that fits on one span, for m queries.

        Returns
        -------
        bound, cost : array of int, shape (m,)
            A lower bound, and the time of a known option; `IMPOSSIBLE` if nothing fits.
        """
        cost, _ = self.points(start, end).cheapest(in_flight, spare)
        return cost, cost

    def least_each(self, starts: Array, ends: Array, in_flight: Array, spare: Array) -> tuple[Array, Array]:
        """`least` for queries on different spans; those of equal content are computed together."""
        bound, cost = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
        groups: dict[tuple[int, int], list[int]] = {}
        for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            groups.setdefault(self.content(start, end), []).append(i)
        for members in groups.values():
            first = members[0]
            bound[members], cost[members] = self.least(
                int(starts[first]), int(ends[first]), in_flight[members], spare[members]
            )
        return bound, cost

    def content(self, start: int, end: int) -> tuple[int, int]:
        """A key; spans with equal keys have equal results of `least`."""
        return start, end

    def crowded(self, starts: Array, ends: Array) -> NDArray[np.bool_]:
        """True for spans with so many options that `least` takes long; `quick_lower_bound` bounds it for them."""
        return np.zeros(np.broadcast_shapes(starts.shape, ends.shape), np.bool_)

    def quick_lower_bound(self, starts: Array, ends: Array, in_flight: Array, spare: Array) -> Array:
        """A lower bound on the extra time that is quick to compute; shapes broadcast."""
        questions = np.broadcast_arrays(starts, ends, in_flight, spare)
        return self.least_each(*(each.ravel() for each in questions))[0].reshape(questions[0].shape)

    def closer_lower_bound(self, starts: Array, ends: Array, in_flight: Array, spare: Array) -> Array:
        """A bound on the least time of each span, at least the quick one, and seldom far below it."""
        return self.quick_lower_bound(starts, ends, in_flight, spare)

    def quick_upper_bound(self, starts: Array, ends: Array, in_flight: Array, spare: Array) -> Array:
        """Extra time of an option that fits and is quick to find; `IMPOSSIBLE` if none is found. Shapes broadcast."""
        questions = np.broadcast_arrays(starts, ends, in_flight, spare)
        return self.least_each(*(each.ravel() for each in questions))[1].reshape(questions[0].shape)

    def fewest_bytes(self, starts: Array, ends: Array, in_flight: Array) -> Array:
        """Fewest bytes ``fixed + k · held + peak`` of any option; shapes broadcast."""
        questions = np.broadcast_arrays(starts, ends, in_flight)
        spans = zip(*(each.ravel().tolist() for each in questions), strict=True)
        least = [int(self.points(start, end).bytes(k).min()) for start, end, k in spans]
        return np.array(least, np.int64).reshape(questions[0].shape)
