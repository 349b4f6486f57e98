"""How far the numbers of a chain partition problem reach."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pipeplan_formulations.partition.instance import ChainPartition


def largest(problem: "ChainPartition") -> int:
    """No objective exceeds this: every layer where it is slowest, recomputed, and sent at its worst, M times.

    It bounds every intermediate sum of the formulations too, so it tells how far integers must reach.
    """
    again = np.where(problem.bytes.useful, problem.forward, 0)
    tables = [problem.forward, problem.backward + again, problem.update]
    tables += [] if problem.weight is None else [problem.weight]
    tables += [] if problem.reduce is None else [problem.reduce]
    # Every stage may pay its base, and for its part of a tie.
    tied = sum(sum(tie.update) + sum(tie.reduce) + sum(tie.home) for tie in problem.ties)
    once = problem.stages * int(problem.base.max()) + tied
    work = sum(int(table.max(axis=0).sum(dtype=object)) for table in tables)
    links = (problem.send, problem.send_back, problem.link)
    sends = sum(int(table.max(axis=1).sum(dtype=object)) for table in links if table.size)
    shared = sum(int(row.max(initial=0)) for w in problem.wires for row in (w.busy, w.beyond) if row is not None)
    step = (problem.micro_batches + 1) * (work + sends) + once + shared + 2 * int(problem.latency.sum(dtype=object))
    return max(
        [
            step,
            *(abs(path.constant) + path.most_surplus + path.largest * (work + sends + once) for path in problem.paths),
        ]
    )
