"""Time lines made by hand, small enough to check on paper."""

from pipeplan.core.schedule import Action
from pipeplan.core.timeline import Span, Step, Timeline, TransferSpan

MS = 10**6
GIB = 2**30


def two_stages() -> Timeline:
    """Two stages, two micro-batches, one forward one backward.

    ::

        device 0  │F0│F1│     │B0·····│   │B1·····│U│       milliseconds: F 2, B 4, U 1, transfer 1
        device 1        │F0│B0····│F1│B1····│
                  0     3  5      9  11     15
    """
    rows = [
        (0, "0F0", 0, 2), (0, "0F1", 2, 4), (1, "1F0", 3, 5), (1, "1B0", 5, 9), (1, "1F1", 9, 11), (0, "0B0", 10, 14),
        (1, "1B1", 11, 15), (0, "0B1", 16, 20), (0, "0U", 20, 21),
    ]  # fmt: skip
    ways = [(0, 1, 0, 2, 3), (0, 1, 1, 4, 5), (1, 0, 0, 9, 10), (1, 0, 1, 15, 16)]
    return Timeline(
        spans=tuple(Span(device, 0, Action.parse(text), a * MS, b * MS) for device, text, a, b in rows),
        transfers=tuple(TransferSpan(s, t, m, 0, a * MS, b * MS, b * MS + 1000) for s, t, m, a, b in ways),
        memory=(
            (Step(0, 2 * GIB), Step(2 * MS, 3 * GIB), Step(14 * MS, 2 * GIB), Step(20 * MS, GIB)),
            (Step(0, GIB), Step(3 * MS, 2 * GIB), Step(15 * MS, GIB)),
        ),
        critical=(),
    )
