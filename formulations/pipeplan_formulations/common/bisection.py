"""Bisection for the least integer that satisfies a monotone test."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Least:
    """Result of a bisection.

    Attributes
    ----------
    number : int
        The least number found that fits.
    excluded : int
        The number below it, which does not fit or was not decided.
    proved : bool
        True if every number taken not to fit was proved not to.
    """

    number: int
    excluded: int
    proved: bool


def least(fits: Callable[[int], tuple[bool | None, int]], low: int, high: int) -> Least:
    """The least number in (low, high] that fits, given that ``low`` does not fit and ``high`` does.

    A number found without search is often the least already, so the one below it is tested first. Then the interval is
    halved.

    Parameters
    ----------
    fits : callable
        ``fits(n)`` returns true if n fits, and None if that is undecided, which counts as no but not as a proof. With
        it comes, if n fits, the least number for which the plan that was found is valid, so the search can skip to it.
    """
    proved, next_below = True, True
    while high - low > 1:
        probe = high - 1 if next_below else (low + high) // 2
        answer, enough = fits(probe)
        if answer:
            high, next_below = max(min(enough, probe), low + 1), not next_below
        elif next_below and answer is None:
            next_below = False
        else:
            low, next_below = probe, False
            proved &= answer is not None
    return Least(high, low, proved)
