"""Equal blocks one behind another.

::

    entry ─┬─ a ─── b ─┬─ exit          the exit of a block is the entry of the next; its costs are the exit's
           └───────────┘

Elimination does equal joins once, and joins the blocks pairwise: 1, 2, 4, … blocks at a time.
"""

from dataclasses import dataclass

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.sharding.frontier import Frontiers
from pipeplan_formulations.sharding.instance import Sharding


@dataclass(frozen=True)
class Block:
    """A graph with two ends.

    Attributes
    ----------
    problem : Sharding
    entry, exit : int
        Different operators, with as many signatures each.

    Raises
    ------
    ValueError
        If they are not.
    """

    problem: Sharding
    entry: int
    exit: int

    def __post_init__(self) -> None:
        count = len(self.problem.costs)
        if not (0 <= self.entry < count and 0 <= self.exit < count and self.entry != self.exit):
            raise ValueError(f"entry {self.entry} and exit {self.exit} must be two of the operators 0 to {count - 1}")
        many = [len(self.problem.costs[v]) for v in (self.entry, self.exit)]
        if many[0] != many[1]:
            raise ValueError(f"the entry has {many[0]} signatures and the exit {many[1]}; they must be the same ones")

    def repeated(self, count: int) -> Sharding:
        """Graph of ``count`` blocks: the operators of the first, then those of each further one but its entry."""
        if count < 1:
            raise ValueError(f"there must be at least one block, not {count}")
        costs, edges = list(self.problem.costs), list(self.problem.edges)
        last = self.exit
        for _ in range(1, count):
            number = {self.entry: last}
            for v, own in enumerate(self.problem.costs):
                if v != self.entry:
                    number[v] = len(costs)
                    costs.append(own)
            edges += [
                edge._replace(source=number[edge.source], target=number[edge.target]) for edge in self.problem.edges
            ]
            last = number[self.exit]
        return Sharding(tuple(costs), tuple(edges), self.problem.maxima)

    def last(self, count: int) -> int:
        """Number of the last block's exit in `repeated`."""
        return (
            self.exit
            if count == 1
            else len(self.problem.costs)
            + (count - 2) * (len(self.problem.costs) - 1)
            + (self.exit - (self.exit > self.entry))
        )


def chain(block: Block, count: int, clock: Clock, most: int | None = None) -> Frontiers:
    """Frontiers of ``count`` equal blocks for each pair of a signature of the first entry and one of the last exit.

    Choices are those of ``block.repeated(count)``; see `Frontiers` for the other parameters and errors.
    """
    return Frontiers(block.repeated(count), clock, (block.entry, block.last(count)), most)
