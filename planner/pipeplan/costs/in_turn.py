"""Several stages on the same ranks: gathers and sums of gradients that take turns, and weights that need no copies.

::

    backwards       ┃ stage 5 ┃ … ┃ stage 1 ┃           of the last micro-batch, on one device
    sums                ╰─ 5 ─╯       ╰── 1 ──╮         those of stage 5 are over long before
                                              R
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from pipeplan.core.pipeline import Bucket, Placement, Stage, exposed
from pipeplan.core.shared_weights import keepers, stages_holding
from pipeplan.costs.chain import Boundaries, Chain, SharedWeights


class Holders(NamedTuple):
    """Weights that layers share, and the stages that keep them: of several on the same ranks the first one."""

    weights: SharedWeights
    stages: tuple[int, ...]

    @classmethod
    def of(cls, chain: Chain, boundaries: Boundaries, placement: Placement) -> "list[Holders]":
        """Return those of all shared weights of a chain."""
        held = [range(a, b) for a, b in pairwise(boundaries)]
        return [cls(each, keepers(stages_holding(each.layers, held), placement)) for each in chain.shared]

    def copied(self, stage: int) -> bool:
        """Return whether a stage has a copy besides that of the first layer's stage."""
        return stage in self.stages[1:]

    def left(self, stage: int) -> bool:
        """Return whether a stage has the first layer while another stage has a copy."""
        return len(self.stages) > 1 and stage == self.stages[0]


def gathered_in_turn(stages: tuple[Stage, ...], placement: Placement) -> tuple[Stage, ...]:
    """Let a stage's first forward wait for the gathers of all stages on its device: they run one after the other."""
    on: dict[int, int] = defaultdict(int)
    for stage, ranks in zip(stages, placement, strict=True):
        for rank in ranks:
            on[rank] += stage.gather
    more = [max(on[rank] for rank in ranks) - stage.gather for stage, ranks in zip(stages, placement, strict=True)]
    return tuple(
        replace(
            stage,
            gather=stage.gather + extra,
            gather_buckets=(*stage.gather_buckets, Bucket(0, 0, extra)) if stage.gather_buckets else (),
        )
        if extra
        else stage
        for stage, extra in zip(stages, more, strict=True)
    )


def summed_in_turn(stages: tuple[Stage, ...], placement: Placement, hides: Sequence[int]) -> tuple[Stage, ...]:
    """Let sums of stages on the same ranks run one after the other, those of the last stage first, beside backwards.

    The last backwards of these stages end in that order, and one of a lower stage follows each. Buckets count from
    the moment at which the ranks wait for them: behind the last backward of all these stages, and the sums of stages
    that were waited for before. Those without layers stay behind all backwards.

    ``hides``: nanoseconds of each stage's last backward that hide sums.
    """
    found = list(stages)
    on: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for s, ranks in enumerate(placement):
        on[ranks].append(s)
    for own in on.values():
        below = sum(hides[s] for s in own)
        end, waited = -below, 0
        for s in reversed(own):
            below -= hides[s]
            if not stages[s].buckets:
                continue
            sums = [replace(each, ready=each.ready + below + waited) for each in stages[s].buckets if each.layers]
            behind = [each for each in stages[s].buckets if not each.layers]
            first = waited - sums[0].ready
            buckets = [*([Bucket(0, sums[0].ready, end - first)] if end > first else []), *sums, *behind]
            for each in sums:
                end = max(end, waited - each.ready) + each.time
            found[s] = replace(stages[s], buckets=tuple(buckets), reduce=exposed(buckets))
            waited = max(waited, end)
    return tuple(found)
