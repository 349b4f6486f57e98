"""`Processes`: the processes of each rank of a plan.

::

    rank             0                1          2             a plan whose stages have teams of 4, 2 and 1
    processes   0   1   2   3       4   5        6
    TP rank     0   1   2   3       0   1        0
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from pipeplan.core.errors import PlanError
from pipeplan.core.plan import Plan


@dataclass(frozen=True)
class Processes:
    """Consecutive processes for every rank of a plan, as many as share its layers.

    Attributes
    ----------
    sizes : tuple of int
        Number of processes of each rank.
    """

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, size: int = 1) -> "Processes":
        """Return the processes of a plan: its teams, or without any ``size`` processes for every rank."""
        if plan.team == 1:
            return cls((size,) * len(plan.ranks))
        team = {device: stage.team for stage in plan.stages for device in stage.devices}
        return cls(tuple(team[device] for device in plan.ranks))

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        return tuple(accumulate(self.sizes, initial=0))

    @property
    def count(self) -> int:
        """Number of all processes."""
        return self._firsts[-1]

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first process of each rank."""
        return self._firsts[:-1]

    @property
    def uniform(self) -> bool:
        """Whether all ranks have equally many."""
        return len(set(self.sizes)) < 2

    def of_rank(self, rank: int) -> range:
        """Return the processes of a rank, in the order of their tensor-parallel ranks."""
        return range(self._firsts[rank], self._firsts[rank + 1])

    def place(self, process: int) -> tuple[int, int]:
        """Return the rank of a process, and its tensor-parallel rank."""
        rank = next(rank for rank in range(len(self.sizes)) if process < self._firsts[rank + 1])
        return rank, process - self._firsts[rank]

    def as_text(self) -> str:
        """``' of 2 processes'``, ``' of 2, 1 and 1 processes'``; nothing if each rank is one process."""
        if set(self.sizes) <= {1}:
            return ""
        sizes = [str(size) for size in (self.sizes[:1] if self.uniform else self.sizes)]
        return f" of {' and '.join(filter(None, (', '.join(sizes[:-1]), sizes[-1])))} processes"


def check_world(plan: Plan, world: int, processes: Processes) -> None:
    """Refuse a process group of another size than that of the plan's processes."""
    if world != processes.count:
        devices = world if plan.team > 1 else world // max(processes.sizes) or 1
        raise PlanError(
            f"the plan has {len(plan.ranks)} ranks{processes.as_text()}, but {world} processes were started; start "
            f"{processes.count} (torchrun --nproc-per-node {processes.count}), or solve for {devices} devices"
        )
