"""One machine, one thing at a time: what releases, times and tails say about the end."""

from collections.abc import Iterable
from heapq import heappop, heappush

Item = tuple[int, int]
"""Release and time; read backwards, tail and time."""


def packed(items: Iterable[Item]) -> int:
    """Earliest end of a machine that does all items, none before its release: by ascending release, without a rest.

    Read backwards, with tails for releases, it is the least time from the first item's start to the end of all tails.
    """
    end = 0
    for release, time in sorted(items):
        end = (release if release > end else end) + time
    return end


def jackson(items: Iterable[tuple[int, int, int]]) -> int:
    """Least end of (release, time, tail) on one machine where work may be interrupted: always the longest tail first.

    J. R. Jackson (1955); with interruptions his rule is optimal, without them it is a lower bound.
    """
    coming = sorted(items)
    waiting: list[tuple[int, int]] = []
    left = [time for _, time, _ in coming]
    end = now = k = 0
    while k < len(coming) or waiting:
        if not waiting:
            now = max(now, coming[k][0])
        while k < len(coming) and coming[k][0] <= now:
            heappush(waiting, (-coming[k][2], k))
            k += 1
        tail, job = waiting[0]
        until = coming[k][0] if k < len(coming) else now + left[job]
        run = min(left[job], until - now)
        now += run
        left[job] -= run
        if not left[job]:
            heappop(waiting)
            end = max(end, now - tail)
    return end
