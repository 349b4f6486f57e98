"""Options of a stage: what it can trade time for memory by, for a span of layers and micro-batches in flight.

A stage may run in several ways, for example with some of its layers recomputed. Each way is an option: it costs extra
time for each micro-batch, and changes the bytes of a device by ``fixed + k · held + peak`` for k micro-batches in
flight, counted from a stage that takes no option and before its workspace::

    bytes │ ○                             ○  a point, one option or one choice of an option for each layer
          │    ○                          ╌  the room that the device's limit leaves: the first point below is the least
          │╌╌╌╌╌╌╌╌○╌╌╌╌╌╌╌╌╌╌╌╌          extra time that fits
          │             ○
          └─────────────────── extra time

`SpanOptions` answers for the spans of a chain, in arrays. Recomputation is one provider
(`pipeplan_formulations.common.recomputation`). Another one states its points; what it can answer faster, it overrides.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.span_knapsack import SpanLargest

Array = NDArray[np.int64]

AT_ONCE = 2**20
"""Entries of the largest table that is made for many questions."""
IMPOSSIBLE = 2**61
"""Extra time where no option fits. Two of them still fit into int64."""


@dataclass(frozen=True)
class OptionPoints:
    """Options of one stage.

    Attributes
    ----------
    time : array of int, shape (lines, points)
        Extra time for each micro-batch, on each line that loads a stage; ascending where there is one line.
    fixed, held, peak : array of int, shape (points,)
        Bytes that stay, that each micro-batch in flight holds, and that are needed for a while; the first two may be
        negative.
    """

    time: Array
    fixed: Array
    held: Array
    peak: Array

    def bytes(self, in_flight: Array) -> Array:
        """What each point takes with k micro-batches in flight; ``in_flight`` broadcasts with the points."""
        need: Array = self.fixed + self.peak + in_flight * self.held
        return need

    def cheapest(self, in_flight: Array, spare: Array) -> tuple[Array, Array]:
        """Extra time and index of the first point that fits, for m questions; `IMPOSSIBLE` and 0 where none does."""
        time, chosen = np.full(len(spare), IMPOSSIBLE), np.zeros(len(spare), np.int64)
        few = max(1, AT_ONCE // len(self.held))
        for low in range(0, len(spare), few):
            part = slice(low, low + few)
            fits = self.bytes(in_flight[part, None]) <= spare[part, None]
            first = chosen[part] = fits.argmax(axis=1)
            time[part] = np.where(fits[np.arange(len(first)), first], self.time[0, first], IMPOSSIBLE)
        return time, chosen


class SpanOptions(ABC):
    """Options of a stage on any span of layers; all stages that share an instance have the same.

    Questions are m spans of layers start … end − 1, given as ``starts`` and ``ends``, with k ≥ 1 micro-batches in
    flight and the ``spare`` bytes that ``fixed + k · held + peak`` may take.

    Attributes
    ----------
    workspace : SpanLargest
        Peak of the point that takes no time; its fixed and held are 0.
    """

    workspace: SpanLargest

    @abstractmethod
    def points(self, start: int, end: int) -> OptionPoints:
        """Options of a span by time, on one line; the first takes no time."""

    @abstractmethod
    def choose(self, start: int, end: int, in_flight: int, spare: int) -> tuple[int, ...] | None:
        """The layers of the span to which the cheapest option that fits does something; None if nothing fits."""

    def least(self, start: int, end: int, in_flight: Array, spare: Array) -> tuple[Array, Array]:
        """Least extra time of one span that fits, for m questions.

        Returns
        -------
        floor, cost : array of int, shape (m,)
            A lower bound, and the time of an option that is known; `IMPOSSIBLE` where nothing fits.
        """
        cost, _ = self.points(start, end).cheapest(in_flight, spare)
        return cost, cost

    def least_each(self, starts: Array, ends: Array, in_flight: Array, spare: Array) -> tuple[Array, Array]:
        """`least` for questions on spans that differ; those of the same content are answered together."""
        floor, cost = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
        groups: dict[tuple[int, int], list[int]] = {}
        for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            groups.setdefault(self.content(start, end), []).append(i)
        for members in groups.values():
            first = members[0]
            floor[members], cost[members] = self.least(
                int(starts[first]), int(ends[first]), in_flight[members], spare[members]
            )
        return floor, cost

    def content(self, start: int, end: int) -> tuple[int, int]:
        """A key that a span shares only with spans to which `least` gives the same answers."""
        return start, end

    def crowded(self, starts: Array, ends: Array) -> NDArray[np.bool_]:
        """Whether spans have so many options that `least` takes long; then `rough` bounds it."""
        return np.zeros(np.broadcast_shapes(starts.shape, ends.shape), np.bool_)

    def quick_lower_bound(self, starts: Array, ends: Array, in_flight: Array, spare: Array) -> Array:
        """A lower bound on the extra time that takes little time to compute; shapes broadcast."""
        questions = np.broadcast_arrays(starts, ends, in_flight, spare)
        return self.least_each(*(each.ravel() for each in questions))[0].reshape(questions[0].shape)

    def fewest_bytes(self, starts: Array, ends: Array, in_flight: Array) -> Array:
        """Fewest bytes ``fixed + k · held + peak`` of any option; shapes broadcast."""
        questions = np.broadcast_arrays(starts, ends, in_flight)
        spans = zip(*(each.ravel().tolist() for each in questions), strict=True)
        least = [int(self.points(start, end).bytes(k).min()) for start, end, k in spans]
        return np.array(least, np.int64).reshape(questions[0].shape)
