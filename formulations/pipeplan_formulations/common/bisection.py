"""The least whole number that fits, by bisection."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Least:
    """``number`` fits; ``excluded``, next below it, does not, which is proved where ``proved`` says so."""

    number: int
    excluded: int
    proved: bool


def least(fits: Callable[[int], tuple[bool | None, int]], low: int, high: int) -> Least:
    """The least number in (low, high] that fits, where ``low`` is known not to and ``high`` is known to.

    A number found by chance is often the least already, so the one below it is asked for first; then the interval is
    halved.

    Parameters
    ----------
    fits : callable
        ``fits(n)`` says whether n fits (None: undecided, taken as no but not as a proof), and, where it does, the
        least number for which the plan that was found is a plan: a jump down that costs nothing.
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
