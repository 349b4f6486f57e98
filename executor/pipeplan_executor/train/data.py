"""The samples of a batch that a rank reads, and the batches of a dataset, of which each rank loads no others.

::

    batch of 8 samples, micro-batches of 2             0 0 1 1 2 2 3 3
    share of replica 1 of 2 of the first stage             1 1     3 3
    share of a rank without first and last stage       none
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch

from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan.frontend.batch import Batch, samples, split
from pipeplan_executor.stages.seeds import derive
from pipeplan_executor.stages.source import converted


@dataclass(frozen=True)
class Share:
    """Micro-batches of which a rank reads inputs or targets.

    Attributes
    ----------
    count, size : int
        Micro-batches of a step, and samples of each.
    micro_batches : tuple of int
        Those that the rank's first or last stage runs.
    """

    count: int
    size: int
    micro_batches: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, rank: int, weighted: bool = False) -> "Share":
        """Return the share of a rank; all if its loss is ``weighted`` by targets, as the weights must be known."""
        last = len(plan.stages) - 1
        forwards = [each for each in plan.schedule.orders[rank] if each.kind is Kind.FORWARD]
        own = {each.micro_batch for each in forwards if each.stage in (0, last)}
        if weighted and any(each.stage == last for each in forwards):
            own = set(range(plan.micro_batches))
        return cls(plan.micro_batches, plan.micro_batch, tuple(sorted(own)))

    @property
    def rows(self) -> list[int]:
        """Places in the batch of the samples that the rank reads."""
        return [number * self.size + row for number in self.micro_batches for row in range(self.size)]

    def parts(self, batch: Batch | None, dtype: torch.dtype | None, device: torch.device) -> list[Batch | None]:
        """Cut a batch, or the rank's share of one, into micro-batches; those that are not there are None.

        Raises
        ------
        PlanError
            If it has another number of samples.
        """
        found, whole, own = None if batch is None else samples(batch), self.count * self.size, len(self.rows)
        if found not in (whole, own):
            shared = f", or its own {own} of them" if own < whole else ""
            raise PlanError(
                f"this rank needs a batch of {whole} samples ({self.count} micro-batches of {self.size}){shared}, not "
                f"{found}; drop the last, smaller batch of an epoch, or plan for its size too"
            )
        pieces = split(converted(batch, dtype, device), self.size)
        if found == whole:
            return list(pieces)
        parts: list[Batch | None] = [None] * self.count
        for number, piece in zip(self.micro_batches, pieces, strict=True):
            parts[number] = piece
        return parts


def batches(
    share: Share, dataset: Any, *, seed: int, epoch: int, shuffle: bool, first: int, **loading: Any
) -> Iterator[tuple[Batch | None, Batch | None]]:
    """Yield the inputs and targets of the rank for each step of an epoch: see `Pipeline.batches`."""
    size, steps = share.count * share.size, len(dataset) // (share.count * share.size)
    if not steps:
        raise InputError(f"the dataset has {len(dataset)} samples, and one step takes {size}")
    order = range(len(dataset))
    if shuffle:
        draws = torch.Generator().manual_seed(derive(seed, "data", epoch))
        order = torch.randperm(len(dataset), generator=draws).tolist()
    if not share.rows:
        return repeat((None, None), max(steps - first, 0))
    chosen: Sequence[list[int]] = [[order[step * size + row] for row in share.rows] for step in range(first, steps)]
    return iter(torch.utils.data.DataLoader(dataset, batch_sampler=chosen, **loading))
