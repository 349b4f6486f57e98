"""Non-increasing in-flight counts: the 1F1B orders that are considered where counts are a choice.

Let each replica of a stage of w units hold k micro-batches, and let R be the units from the stage on. SNO holds
⌈R / w⌉, and the *excess* of the stage is k w − R. Counts are non-increasing if no stage that holds more than SNO has a
larger excess than a stage before it. Stages that hold all micro-batches that they ever see (M_w) are exempt:

::

    units from a stage on     5    4    3    2    1          one unit per stage
    micro-batches held        7    6    4    2    1
    excess                    2    2    1    0    0          7 5 5 2 1 would make stages 1 and 2 take turns

With a smaller excess before it, a stage runs out of memory before the gradients that it waits for can come back, and
neighbouring stages take turns. The counts of SNO and SO are non-increasing, and so are the most that are considered,
⌈(3 R − 2 w) / w⌉. Non-increasing counts cannot deadlock.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from pipeplan_formulations.common.sentinels import UNLIMITED


def is_non_increasing(widths: Sequence[int], shares: Sequence[int], least: Sequence[int], held: Sequence[int]) -> bool:
    """True if in-flight counts are non-increasing along the pipeline.

    Parameters
    ----------
    widths : sequence of int
        Units, or devices, of each stage.
    shares, least, held : sequence of int
        Micro-batches of a replica of each stage: all that it takes (M_w), those that SNO holds, those that are held.
    """
    # The least excess of the earlier stages that hold fewer than M_w micro-batches.
    allowed = UNLIMITED
    rest = list(accumulate(reversed(widths)))[::-1]
    for width, share, fewest, k, units in zip(widths, shares, least, held, rest, strict=True):
        excess = k * width - units
        if k > fewest and excess > allowed:
            return False
        if k < share:
            allowed = min(allowed, excess)
    return True


def excess_ranges(most: int) -> list[range]:
    """Ranges of excess that the dynamic programme distinguishes: 0, 1, 2, 3, 4 … 5, 6 … 7, 8 … 11 and so on.

    The last one ends at ``most``. A stage requires only the start of its range of the stages before it, so the
    programme's value stays a lower bound.
    """
    octaves = (start for i in range(1, most.bit_length()) for start in (2**i, 3 * 2 ** (i - 1)) if start <= most)
    return [range(a, b) for a, b in pairwise([*range(min(most, 1) + 1), *octaves, most + 1])]
