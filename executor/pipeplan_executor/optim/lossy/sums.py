"""Sums of gradients over replicas with bounded loss: chunks that need not arrive, means of those that have.

::

    rank 0   ┊ own part         ┊ for 1   .  . ┊     the least important chunks of other owners' parts are left out
    rank 1   ┊ for 0     .      ┊ own part     ┊
    means    ┊ (0 + 1)/2 │ 0/1  ┊ …            ┊     an owner divides each chunk by the number that has arrived
    gather   ┊ to 1             ┊ to 0         ┊     without loss: replicas stay equal bit by bit

Which rank owns which part is drawn for each sum, so that no rank's own gradients count more in the mean. If chunks are
left out at random, the mean over all draws is the gradient. If the least energy is left out, a single sum is biased:
of each part, a share p has been left out with at most p of its energy. *Error feedback* gives that back. A sender adds
what did not arrive to its next gradients, and an owner subtracts what its division had put in its place. With A, the
sum of m of W arrived chunks, and D, that of the others, the mean is (A + D)/W, and A/m was used. The senders keep D
and the owner -A (W - m)/m, and both together are W ((A + D)/W - A/m). So over all steps nothing is lost but what is
kept at the end.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan_executor.optim.lossy.arrivals import Offer, exchange
from pipeplan_executor.stages.messages import gather_from_owners
from pipeplan_formulations.priority import BUDGETS_BELOW

CHUNK = 256
"""Numbers that arrive or are left out together."""

Importance = Callable[[Tensor, torch.Generator], Tensor]
"""Importance of each row of [chunk, number]; those of the least are left out first. Random numbers are this rank's."""


class Kept(NamedTuple):
    """Where the numbers are that sums of a parameter's gradients have left out.

    Attributes
    ----------
    parameters : tuple of Parameter
        Those that are summed together.
    numbers : Tensor
        What was left out of all of them.
    start : int
        First number of this parameter.
    """

    parameters: tuple[Tensor, ...]
    numbers: Tensor
    start: int


def energy(chunks: Tensor, generator: torch.Generator) -> Tensor:
    """Return the sum of squares of each chunk."""
    del generator
    return torch.linalg.vector_norm(chunks, dim=1).square()


def at_random(chunks: Tensor, generator: torch.Generator) -> Tensor:
    """Return random numbers: chunks are left out whatever they hold."""
    return torch.rand(len(chunks), generator=generator)


class BoundedLoss:
    """Sums of gradients over replicas of which a bounded share need not arrive; state of `bounded_loss_hook`.

    All ranks create it with the same arguments. Of what a rank sends to another one for each sum, at least 1 - budget
    arrives. What is left out is kept and added to the next step's gradients (error feedback). The results are the same
    on all ranks, bit by bit, since the owner of a part sends its means without loss.

    Parameters
    ----------
    budget : float
        Share of gradients that need not arrive, at least 0 and below 0.5.
    deadline : float
        Seconds from the beginning of a sum in which an owner asks for more than 1 - budget. By default nothing more is
        sent; with a second or more, nothing is lost on a link that is fast enough.
    importance : callable
        Importance of chunks of 256 numbers, by default their `energy`.
    feedback : bool
        Keep what was left out for the next step.
    seed : int
        Of the draws of owners.
    group : ProcessGroup, optional
        The replicas of the hook's model, by default all processes.

    Attributes
    ----------
    budget, deadline, feedback, seed, group
    offered, left_out : int
        Numbers that this rank had for other owners so far, and those that did not arrive.
    kept : dict of Parameter to Kept
        What the hook's sums have left out.

    Raises
    ------
    InputError
        If the budget or the deadline is out of range.

    Examples
    --------
    >>> loss = pipeplan_executor.BoundedLoss(0.02)
    >>> loss.budget, loss.left_out
    (0.02, 0)
    >>> pipeplan_executor.BoundedLoss(0.6)
    Traceback (most recent call last):
    pipeplan.core.errors.InputError: a loss budget of 0.6 ...
    """

    def __init__(
        self,
        budget: float,
        *,
        deadline: float = 0.0,
        importance: Importance = energy,
        feedback: bool = True,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not 0 <= budget < BUDGETS_BELOW:
            raise InputError(
                f"a loss budget of {budget:g} is outside [0, {float(BUDGETS_BELOW):g}): it is the share of each "
                "replica's gradients that need not arrive. Begin with 0.02; 0 loses nothing"
            )
        if not 0 <= deadline < math.inf:
            raise InputError(
                f"a deadline of {deadline:g} s is no time: give seconds from the beginning of a sum, 0 to send no more "
                "than the share that must arrive, or a budget of 0 where all must arrive"
            )
        self.budget, self.deadline, self.feedback, self.seed, self.group = budget, deadline, feedback, seed, group
        self.offered = self.left_out = 0
        self.kept: dict[Tensor, Kept] = {}
        self._importance = importance
        self._owners = torch.Generator().manual_seed(seed)  # the same draws on all ranks
        self._own: torch.Generator | None = None

    @property
    def keeps(self) -> bool:
        """True if anything is kept for the next step."""
        return self.feedback and self.budget > 0

    def check(self, dtype: torch.dtype) -> None:
        """Refuse formats of gradients for which these sums do not work.

        Raises
        ------
        InputError
            With what works instead.
        """
        if not dtype.is_floating_point:
            raise InputError(f"gradients of {dtype} have no bounded loss; their real and imaginary parts can be summed")
        if dtype is torch.float16 and self.keeps:
            raise InputError(
                "gradients of float16 belong to a scaled loss, whose scale changes between steps: what one step leaves "
                "out cannot be added to the next one's. Use bfloat16, which needs no scale, or feedback=False"
            )

    def mean(self, values: Tensor, kept: Tensor | None, group: dist.ProcessGroup, times: int = 1) -> None:
        """Replace gradients by ``times`` their mean over the ranks, of which each rank has the same numbers then.

        Parameters
        ----------
        values : Tensor, [number]
            Gradients of this rank, contiguous and in main memory.
        kept : Tensor or None, [number, padded to whole chunks]
            What earlier sums of the same numbers left out, from `room`; without feedback None.

        Raises
        ------
        InputError
            At the first sum, if ranks have other arguments.
        RuntimeError
            If a rank is gone, or stands still longer than the group's timeout.
        """
        world = group.size()
        shift = int(torch.randint(world, (), generator=self._owners))
        chunks = -(-len(values) // CHUNK)
        spans = [
            slice(CHUNK * (i * chunks // world), CHUNK * ((i + 1) * chunks // world))
            for i in ((owner - shift) % world for owner in range(world))
        ]
        parts = [values[span] for span in spans]
        self.mean_at_owners(parts, [None if kept is None else kept[span] for span in spans], group, times)
        gather_from_owners(parts, group)

    def mean_at_owners(
        self, parts: Sequence[Tensor], kept: Sequence[Tensor | None], group: dist.ProcessGroup, times: int = 1
    ) -> None:
        """Replace this rank's part by ``times`` its mean over the ranks; the others stay.

        Parameters
        ----------
        parts : sequence of Tensor, [number]
            The numbers of each owner, by rank in the group.
        kept : sequence of (Tensor or None)
            As for `mean`, of each part.
        """
        rank = group.rank()
        if self._own is None:
            self._begin(rank, group)
        rows = [_rows(part, rest) for part, rest in zip(parts, kept, strict=True)]
        offers = {
            peer: Offer(own.to(parts[peer].dtype), self._order(own)) for peer, own in enumerate(rows) if peer != rank
        }
        arrivals, sent = exchange(offers, len(rows[rank]), self._least, self.deadline, group)
        total = rows[rank]
        arrived = total.new_ones(len(total), 1)
        for numbers, chunks in arrivals:
            total.index_add_(0, numbers, chunks.to(total.dtype))
            arrived.index_add_(0, numbers, arrived.new_ones(len(numbers), 1))
        parts[rank].copy_((total * (times / arrived)).view(-1)[: len(parts[rank])])
        for peer, count in sent.items():
            self.offered += CHUNK * len(offers[peer].order)
            self.left_out += CHUNK * (len(offers[peer].order) - count)
        if kept[rank] is not None:
            total.mul_((arrived - len(parts)) / arrived)
            for peer, count in sent.items():
                gone = offers[peer].order[:count]
                rows[peer][gone] -= offers[peer].chunks[gone].to(total.dtype)  # 16-bit numbers leave what they round
            for own in rows:
                own.nan_to_num_(0.0, 0.0, 0.0)  # a step that overflowed must not return in the next one

    def room(self, numbers: int, like: Tensor) -> Tensor | None:
        """Return zeros for what sums of so many gradients leave out; None if nothing is kept."""
        if not self.keeps:
            return None
        return torch.zeros(-(-numbers // CHUNK) * CHUNK, dtype=_wide(like.dtype))

    def _least(self, chunks: int) -> int:
        return chunks - int(self.budget * chunks)

    def _order(self, chunks: Tensor) -> Tensor:
        if self._least(len(chunks)) == len(chunks):
            return torch.arange(len(chunks), dtype=torch.int32)
        assert self._own is not None
        # what is no number comes first, so that every rank sees an overflow
        return self._importance(chunks, self._own).argsort(descending=True).int()

    def _begin(self, rank: int, group: dist.ProcessGroup) -> None:
        """Compare the arguments of all ranks, whose messages would else not fit together."""
        own = torch.tensor([self.budget, self.deadline, self.feedback, self.seed], dtype=torch.float64)
        every = [torch.empty_like(own) for _ in range(group.size())]
        group.allgather([every], [own]).wait()
        unlike = next((peer for peer, other in enumerate(every) if not torch.equal(own, other)), None)
        if unlike is not None:
            names = ("budget", "deadline", "feedback", "seed")
            told = [
                ", ".join(f"{name} {value:g}" for name, value in zip(names, each.tolist(), strict=True))
                for each in (own, every[unlike])
            ]
            raise InputError(f"ranks sum with unlike bounds: rank {rank} with {told[0]}, rank {unlike} with {told[1]}")
        self._own = torch.Generator().manual_seed((self.seed << 16) + rank + 1)


def _rows(part: Tensor, kept: Tensor | None) -> Tensor:
    """Return the numbers of a part in a wide format, [chunk, number]; what was kept is added, and replaced by them."""
    if kept is not None:
        kept[: len(part)] += part
        return kept.view(-1, CHUNK)
    padded = part.new_zeros(-(-len(part) // CHUNK) * CHUNK, dtype=_wide(part.dtype))
    padded[: len(part)] = part
    return padded.view(-1, CHUNK)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize < 4 else dtype
