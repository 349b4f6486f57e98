"""Comparison of the three solvers of the chain partition problem on growing instances: objective, bound, gap, time.

Plain instances have one device per stage. Full ones have replicas, reductions, short warm-ups and layers of a few kinds
to recompute, on devices too small without recomputation.
"""

from dataclasses import replace

import numpy as np

from pipeplan_formulations import partition
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.partition import ChainPartition

CASES = ((40, 8, 32), (100, 8, 32), (176, 8, 32), (98, 64, 256))
"""Layers, stages, micro-batches."""
FULL = ((98, 8, 64), (98, 64, 512), (1000, 256, 1024))
"""The same for full instances."""


def instance(layers: int, stages: int, micro_batches: int, seed: int = 0) -> ChainPartition:
    """Instance of unequal layers, two kinds of device, priced links, and memory that binds on the first stages."""
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
        send=send,
        send_back=send,
        link=send,
        latency=np.full(stages - 1, 5),
        resident=np.full(layers, 10),
        saved=saved,
        received=boundary,
        in_flight=in_flight,
        limit=limit,
        micro_batches=micro_batches,
    )


def full_instance(layers: int, stages: int, micro_batches: int, sorts: int = 3, seed: int = 0) -> ChainPartition:
    """Instance of few kinds of layers; every third stage has two replicas; half of stage 0's activations fit."""
    random = np.random.default_rng(seed)
    sort = random.integers(0, sorts, layers)
    forward = random.integers(500_000, 1_500_000, sorts)[sort]
    saved, output = (random.integers(low, 3 * low, sorts)[sort] * 10**6 for low in (500, 50))
    table = (forward[None, :] * np.where(np.arange(stages) % 2, 1.7, 1.0)[:, None]).astype(np.int64)
    replicas = np.where(np.arange(stages) % 3, 1, 2)
    counts = -(-micro_batches // replicas)
    after = np.cumsum(replicas[::-1])[::-1]
    in_flight = np.minimum(-(-after // replicas), counts)
    return replace(
        instance(layers, stages, micro_batches, seed),
        forward=table,
        backward=2 * table,
        update=table // 3,
        reduce=np.where(replicas[:, None] > 1, table // 2, 0),
        reduce_base=np.where(replicas > 1, 50_000, 0),
        send=np.full((stages - 1, layers - 1), 40_000),
        send_back=np.full((stages - 1, layers - 1), 40_000),
        saved=saved,
        output=output,
        recomputable=np.ones(layers, np.bool_),
        workspace=output // 2,
        in_flight=in_flight,
        counts=counts,
        alternating=True,
        limit=np.full(stages, int(saved.mean() * layers / stages * in_flight.max() / 2) + 2 * int(saved.max())),
    )


def main() -> None:
    """Print the table."""
    print(
        f"{'problem':>7} {'layers':>6} {'stages':>6} {'backend':>8} {'objective':>12} {'bound':>12} {'gap':>8} "
        f"{'seconds':>8}  status"
    )
    for kind, case in [*(("plain", case) for case in CASES), *(("full", case) for case in FULL)]:
        problem = instance(*case) if kind == "plain" else full_instance(*case)
        for backend in ("exact", "cpsat", "cbc"):
            report = partition.solve(problem, Limits(time=60), backend=backend)
            objective = "-" if report.objective is None else f"{report.objective}"
            gap = "-" if report.gap is None else f"{report.gap:.2%}"
            print(
                f"{kind:>7} {case[0]:6} {case[1]:6} {backend:>8} {objective:>12} {report.bound:12} {gap:>8} "
                f"{report.wall:8.2f}  {report.status}",
                flush=True,
            )


if __name__ == "__main__":
    main()
