"""Do a plan file's placement and transfers match the replicas of its stages?"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import pairwise
from math import lcm


def replica_faults(
    devices: Sequence[Sequence[int]], placement: Sequence[Sequence[int]], ways: Mapping[str, Sequence[Sized]]
) -> Iterator[str]:
    """What is wrong, each with its path in the file.

    Parameters
    ----------
    devices, placement : sequence of sequence of int
        For each stage its devices and its ranks, one a replica.
    ways : mapping of str to sequence
        ``transfers`` and ``returns``: for each boundary one entry for each pair of replicas that meets.
    """
    for n, (homes, own) in enumerate(zip(placement, devices, strict=True)):
        if len(homes) != len(own) or len(set(homes)) != len(homes):
            yield f"pipeline.placement[{n}]: has ranks {list(homes)} for {len(own)} devices; write another one for each"
    widths = [max(1, len(homes)) for homes in placement]
    for name, rows in ways.items():
        for n, (row, (a, b)) in enumerate(zip(rows, pairwise(widths), strict=True)):
            if len(row) != lcm(a, b):
                yield (
                    f"pipeline.{name}[{n}]: has {len(row)} entries and needs {lcm(a, b)}, the least common multiple of "
                    f"{a} and {b} replicas"
                )
