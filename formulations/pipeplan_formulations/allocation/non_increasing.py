"""In-flight counts that fall along the pipeline: the 1F1B orders that are looked at where counts are a choice.

Let a stage of w units hold k micro-batches a replica, and R be the units from it on. SNO holds ⌈R / w⌉, and the
*excess* of the stage is k w − R. A stage that holds more than SNO asks every stage before it for no less excess than it
has itself, unless that one holds all the micro-batches that it ever sees (M_w):

::

    units from a stage on     5    4    3    2    1          one unit a stage
    micro-batches held        7    6    4    2    1
    excess                    2    2    1    0    0          with 7 5 5 2 1 the second and the third would take turns

With less, a stage runs out of memory before the gradients that it waits for can come back, and neighbours take turns.
The counts of SNO and SO fall, and counts that fall cannot deadlock.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from pipeplan_formulations.common.sentinels import UNLIMITED


def falls(widths: Sequence[int], shares: Sequence[int], least: Sequence[int], held: Sequence[int]) -> bool:
    """Whether counts fall along the pipeline.

    Parameters
    ----------
    widths : sequence of int
        Units, or devices, of each stage.
    shares, least, held : sequence of int
        Micro-batches of a replica of each stage: all that it has (M_w), those SNO holds, those that are held.
    """
    allowed = UNLIMITED
    rest = list(accumulate(reversed(widths)))[::-1]
    for width, share, fewest, k, units in zip(widths, shares, least, held, rest, strict=True):
        excess = k * width - units
        if k > fewest and excess > allowed:
            return False
        if k < share:
            allowed = min(allowed, excess)
    return True


def excesses(most: int) -> list[range]:
    """Ranges of excess that the dynamic programme tells apart: 0, 1, 2, 3, 4 … 5, 6 … 7, 8 … 11 and so on to ``most``.

    A stage asks for the start of its range only, which keeps the programme's value a bound.
    """
    octaves = (start for i in range(1, most.bit_length()) for start in (2**i, 3 * 2 ** (i - 1)) if start <= most)
    return [range(a, b) for a, b in pairwise([*range(min(most, 1) + 1), *octaves, most + 1])]
