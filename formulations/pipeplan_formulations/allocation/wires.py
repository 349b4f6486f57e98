"""How many micro-batches pass one wire between the replicas of two neighbouring stages.

Micro-batch m goes from replica m mod r to replica m mod r', so every lcm(r, r')-th takes the same wire. The width of
the neighbour is left open: of all widths it may have, that counts which is the least for the wire.
"""

from math import lcm


def wire_shares(widths: tuple[int, ...], unit: int, micro_batches: int) -> dict[int, int]:
    """Least number of micro-batches on the busiest wire of a stage of each width."""
    periods = {width: max(lcm(width * unit, other * unit) for other in widths) for width in widths}
    return {width: -(-micro_batches // period) for width, period in periods.items()}
