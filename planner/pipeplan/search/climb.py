"""How far below the incumbent a large node is asked for something better: much at first, then less.

::

    incumbent ─────────────────────────────────
    3 % below             ▲              ▲          nodes climb one rung after the other,
    10 % below      ▲     │        ▲     │          always the lowest one first
    floors          │     │        │     │

To exclude what is much better takes little time, and the bound of all rises together with that of the lowest one.
"""

from dataclasses import dataclass

from pipeplan.search.prove import ACCURACY, Prover

RUNGS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Shares of the incumbent, until the gap that is wanted."""
CLOSE = 5e-4
"""The relative gap at which the most promising shape of many is good enough: simulation decides the rest."""


@dataclass(frozen=True, slots=True)
class Question:
    """Values from ``cutoff`` on do not matter now; the bound shall come as close as ``accuracy`` to the best one.

    ``last``: whether nothing is left to ask after it, unless the incumbent changes.
    """

    cutoff: int | None
    accuracy: float
    last: bool


@dataclass
class Climb:
    """Where a node stands."""

    rung: int = 0

    def question(self, prover: Prover, bound: int) -> Question:
        """The lowest rung from here on that is above the node's bound."""
        value, gap = prover.value, prover.limits.gap
        rungs = (*(rung for rung in RUNGS if rung > gap), gap)
        last = len(rungs) - 1
        if value is None:
            return Question(None, rungs[0], last=False)
        self.rung = min(self.rung, last)
        while self.rung < last and below(value, rungs[self.rung]) <= bound:
            self.rung += 1
        share = rungs[self.rung]
        return Question(below(value, share), _accuracy(share), last=self.rung == last)

    def up(self) -> None:
        """The next question is a finer one."""
        self.rung += 1


def below(value: int, share: float) -> int:
    """A value less that share of it, rounded up."""
    return value - int(share * value)


def at_once(prover: Prover) -> Question:
    """The last question."""
    gap, most = prover.limits.gap, prover.cutoff
    return Question(most, max(gap, CLOSE) if most is None else _accuracy(gap), last=True)


def _accuracy(share: float) -> float:
    """What is found is simulated, so it counts, and bounds nearer to it than `CLOSE` are not worth their time."""
    return max(ACCURACY * share, CLOSE)
