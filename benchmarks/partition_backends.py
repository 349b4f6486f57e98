"""The three solvers of the chain partition problem on growing instances: objective, bound, gap, time."""

import numpy as np

from pipeplan_formulations import partition
from pipeplan_formulations.partition import ChainPartition
from pipeplan_formulations.report import Limits

CASES = ((40, 8, 32), (100, 8, 32), (176, 8, 32), (98, 64, 256))
"""Layers, stages, micro-batches."""


def instance(layers: int, stages: int, micro_batches: int, seed: int = 0) -> ChainPartition:
    """Unequal layers, two kinds of device, priced links, memory that binds on the first stages."""
    random = np.random.default_rng(seed)
    forward = random.integers(500, 1500, layers)
    speed = np.where(np.arange(stages) % 2, 1.5, 1.0)
    table = (forward[None, :] * speed[:, None]).astype(np.int64)
    saved = random.integers(50, 150, layers)
    in_flight = np.minimum(stages - np.arange(stages), micro_batches)
    boundary = random.integers(20, 200, layers - 1)
    send = np.repeat(boundary[None, :], stages - 1, axis=0)
    limit = np.full(stages, int(1.3 * saved.sum() / stages * in_flight.mean() * 1.2))
    return ChainPartition(
        forward=table,
        backward=2 * table,
        update=np.zeros_like(table),
        send=send,
        send_back=send,
        link=send,
        latency=np.full(stages - 1, 5),
        resident=np.full(layers, 10),
        saved=saved,
        received=boundary,
        workspace=np.zeros(layers, np.int64),
        in_flight=in_flight,
        limit=limit,
        micro_batches=micro_batches,
    )


def main() -> None:
    """Print the table."""
    print(
        f"{'layers':>6} {'stages':>6} {'backend':>8} {'objective':>12} {'bound':>12} {'gap':>8} {'seconds':>8}  status"
    )
    for case in CASES:
        problem = instance(*case)
        for backend in ("exact", "cpsat", "cbc"):
            report = partition.solve(problem, Limits(time=60), backend=backend)
            objective = "-" if report.objective is None else f"{report.objective}"
            gap = "-" if report.gap is None else f"{report.gap:.2%}"
            print(
                f"{case[0]:6} {case[1]:6} {backend:>8} {objective:>12} {report.bound:12} {gap:>8} {report.wall:8.2f}  "
                f"{report.status}",
                flush=True,
            )


if __name__ == "__main__":
    main()
