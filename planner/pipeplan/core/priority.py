"""`Priority`: gradients of a stage that are summed in chunks, those of its front layers first.

The sums go on while the next step begins. Its first forward waits at each layer for the sums of that layer's unit
only. Units are layers, or small neighbours together::

    last backward    │ layer 2 │ layer 1 │ layer 0 │
    sums                       ├2┤2├1┤1├1┤0├0┤0├0┤1├2├2┤
    next forward                                    │0│1│  │2│        layer 2 waits, layer 0 did longer
                                         needed of 2:  ├───┤ from the begin of a forward that waits for nothing
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from pipeplan.core.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Send:
    """Some chunks of one unit's gradients that are summed one behind the other.

    A unit is a layer, and those behind it up to the next one that a send of the stage names.

    Attributes
    ----------
    layer : str
        The first layer of the unit.
    chunks : int
        How many of the unit's chunks.
    ready : int
        Nanoseconds before the end of the stage's last backward at which the unit's gradients are complete.
    time : int
        Nanoseconds for which these chunks keep the link busy, without what may be lost.
    needed : int
        Nanoseconds behind the begin of the next step's first forward at which the unit's new weights are needed.
    """

    layer: str
    chunks: int
    ready: int
    time: int
    needed: int


@dataclass(frozen=True)
class Priority:
    """The order of a stage's sums, the same on all its replicas, and what of them may be lost.

    A unit's gradients, one behind the other, are cut into as many nearly equal chunks as its sends have together.

    Attributes
    ----------
    chunk : int
        Most bytes of a chunk.
    sends : tuple of Send
        In the order in which they begin. A chunk that is ready waits for all that come before it. Empty for a stage
        that sums nothing.
    lost : tuple of (str, float)
        First layers of units, and the share of each unit's bytes that need not arrive in the half of the sum in which
        gradients are added. Other units lose nothing.
    prices : tuple of (str, float)
        First layers of units for whose sums steps wait, and the nanoseconds that a megabyte more of each would cost a
        step: duals of `pipeplan_formulations.priority`.
    """

    chunk: int
    sends: tuple[Send, ...] = ()
    lost: tuple[tuple[str, float], ...] = ()
    prices: tuple[tuple[str, float], ...] = ()

    @property
    def exposed(self) -> int:
        """Nanoseconds by which the next step is later than it would be if there were no sums."""
        return max([0, *(end - send.needed for end, send in zip(self.ends, self.sends, strict=True))])

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Nanoseconds from the end of the last backward to the end of each send; negative for those ahead of it."""
        ends: list[int] = []
        for send in self.sends:
            ends.append(max([-send.ready, *ends[-1:]]) + send.time)
        return tuple(ends)

    @property
    def behind(self) -> int:
        """Nanoseconds from the end of the last backward to the end of all sums."""
        return max([0, *self.ends[-1:]])

    @property
    def binding(self) -> tuple[str, ...]:
        """First layers of the units for which the next step waits longest, in order; none if it waits for none."""
        late = self.exposed
        rows = [(send.needed, send.layer) for end, send in zip(self.ends, self.sends, strict=True)
                if late and end - send.needed == late]  # fmt: skip
        return tuple(dict.fromkeys(layer for _, layer in sorted(rows)))

    @cached_property
    def chunks(self) -> dict[str, int]:
        """Number of chunks of each unit, by its first layer."""
        found = Counter[str]()
        for send in self.sends:
            found[send.layer] += send.chunks
        return dict(found)

    def units(self, layers: Sequence[str]) -> list[int]:
        """Return the number of layers of each unit of a stage on these layers, the last ones first, as of buckets.

        Layers without gradients ahead of the first unit belong to it.
        """
        edges = [0, *[i for i, name in enumerate(layers) if name in self.chunks][1:], len(layers)]
        return [b - a for a, b in pairwise(edges)][::-1] if self.sends else []


def with_sums_behind(pipeline: Pipeline, priority: Sequence[Priority]) -> Pipeline:
    """Return the pipeline of a step that no other one follows: all its sums end before its updates."""
    if not priority:
        return pipeline
    stages = zip(pipeline.stages, priority, strict=True)
    return replace(pipeline, stages=tuple(replace(stage, reduce=own.behind) for stage, own in stages))
