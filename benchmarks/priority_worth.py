"""What sums front layers first are worth: data parallelism with them beside the best plans of any shape.

For each question the period of the best plan found, of data parallelism that sums in buckets beside its last backward
(what torch's DistributedDataParallel does), and of plans with sums front layers first: of any shape and of one stage,
at level 0 of ZeRO, without losses and with a tenth of the gradients lost. ``ideal`` is one stage without chunks: what
no order undercuts. Ratios above 1 are gains.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from pipeplan import InfeasibleError, Result, load_cluster, load_model, solve
from pipeplan.core.cluster import Cluster
from pipeplan.core.model import Model

SECONDS, ALONE = 40, 8
"""Seconds of a search among all shapes, and of one among plans of one stage."""
QUESTIONS = (
    ("resnet-50", 1, 256),
    ("resnet-50", 10, 256),
    ("resnet-50", 25, 256),
    ("vgg-16", 10, 64),
    ("vgg-16", 25, 64),
    ("gpt2-small", 10, 32),
    ("gpt2-small", 25, 32),
    ("bert-large", 10, 64),
    ("bert-large", 25, 64),
    ("gnmt-8", 10, 64),
)
"""Models, gigabits per second between two nodes of four V100, samples of a step."""


class Row(NamedTuple):
    """Milliseconds of each way; None where there is none."""

    shapes: str
    best: float
    barrier: float | None
    ideal: float | None
    one_stage: float | None
    lossy: float | None
    any_shape: float | None


def main() -> None:
    """Print a table."""
    print(f"{'':16} {'Gbit/s':>6} {'batch':>5} | {'best':>8} {'DDP':>8} {'ideal':>8} {'chunks':>8} {'10% lost':>8} "
          f"{'any shape':>9} | best / ideal, chunks, 10% lost, any shape | DDP / chunks | best plan")  # fmt: skip
    for name, gigabits, batch in QUESTIONS:
        row = asked(load_model(name), on_network(gigabits), batch)
        times = (row.best, row.barrier, row.ideal, row.one_stage, row.lossy, row.any_shape)
        shown = " ".join(f"{'-':>8}" if each is None else f"{each:8.1f}" for each in times)
        gains = " ".join(ratio(row.best, each) for each in times[2:])
        print(f"{name:16} {gigabits:6} {batch:5} | {shown} | {gains} | {ratio(row.barrier, row.one_stage)} | "
              f"{row.shapes}", flush=True)  # fmt: skip


def ratio(one: float | None, other: float | None) -> str:
    """How many times as fast the other is."""
    return "   -" if one is None or other is None else f"{one / other:.2f}"


def on_network(gigabits: float) -> Cluster:
    """Two nodes of four V100, whose cards have so many gigabits per second."""
    cluster = load_cluster("2x4-v100-10gbit")
    assert cluster.network is not None
    network = replace(cluster.network, bandwidth=int(gigabits * 10**9 / 8))
    return replace(cluster, name=f"2x4-v100-{gigabits}gbit", network=network)


def asked(model: Model, cluster: Cluster, batch: int) -> Row:
    """Return the times of one question."""

    def found(seconds: float, **options: Any) -> Result | None:
        try:
            return solve(model, cluster, batch, objective="period", time_limit=seconds, workers=1, gap=0.005, **options)
        except InfeasibleError:
            return None

    free = found(SECONDS, front_first=True)
    assert free is not None
    alone = {"depths": 1, "replicas": len(cluster.devices), "zero": 0, "front_first": True}
    one, lossy = (found(ALONE, **alone, loss_budget=share) for share in (0.0, 0.1))
    front = None if one is None else one.front_first
    return Row(
        shapes=free.plan.headline.partition(": ")[2],
        best=free.value / 1e6,
        barrier=None if one is None else one.value / 1e6,
        ideal=front.ideal / 1e6 if front and front.plan else None,
        one_stage=reordered(one),
        lossy=reordered(lossy),
        any_shape=reordered(free),
    )


def reordered(result: Result | None) -> float | None:
    """Milliseconds of the answer's plan with sums front layers first, if there is one."""
    front = None if result is None else result.front_first
    return front.plan.value / 1e6 if front and front.plan else None


if __name__ == "__main__":
    main()
