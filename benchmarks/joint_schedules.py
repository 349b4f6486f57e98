"""Partition and order under short memory: optimised alone, one after the other, and jointly.

Each model gets 60 % of the memory that the best 1F1B plan without limits uses on its fullest device. Rows:

    1F1B, no limit      the best plan without memory limits
    partition only      the best partition under the limit, its order 1F1B with the counts that suit it
    order only          the partition of the first row, the best order under the limit
    one, then other     the partition of the second row, then the best order on it
    joint               partition and order together; its bound is over all partitions and all orders

All rows have the same stages, one per device, and the same micro-batch size. Every order may split backwards. Layers
are recomputed if that pays, or not at all in the second half of the table ("kept"). GPT-2's head is one layer that
takes as long as four blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job, Recompute
from pipeplan.core.model import Model
from pipeplan.core.units import format_bytes, format_time
from pipeplan.io.load import load_cluster, load_model
from pipeplan.search.result import Result
from pipeplan.solve import solve

ONE_F_ONE_B = ("1f1b-sno", "1f1b-so", "1f1b")
SHARE = 0.6
SECONDS = 30.0
"""Time limit of each row, in seconds."""


@dataclass(frozen=True)
class Question:
    """A model on a line of devices."""

    model: str
    cluster: str
    devices: int
    batch: int
    micro_batches: int
    optimizer: str = "momentum"


QUESTIONS = (
    Question("vgg-16", "4-v100-nvlink", 4, 256, 16),
    Question("vgg-16", "4-v100-pcie", 4, 256, 8),
    Question("vgg-16", "8-v100-nvlink", 8, 256, 16),
    Question("gnmt-8", "4-v100-nvlink", 4, 512, 8),
    Question("gnmt-16", "4-v100-nvlink", 4, 512, 8),
    Question("gnmt-16", "8-v100-nvlink", 8, 512, 16),
    Question("gpt2-small", "4-v100-nvlink", 4, 64, 8, "adam"),
    Question("gpt2-small", "4-v100-nvlink", 4, 64, 16, "adam"),
)


def main() -> None:
    """Print the table."""
    print(f"{'problem':46} {'row':16} {'step':>9} {'bound':>9} {'gap':>7} {'wall':>6}  layers per stage, in flight")
    for recompute in (Recompute.CHOOSE, Recompute.NONE):
        for question in QUESTIONS:
            _table(question, recompute, SECONDS)


def _table(question: Question, recompute: Recompute, seconds: float) -> None:
    model, cluster = load_model(question.model), load_cluster(question.cluster)
    job = Job(
        batch=question.batch,
        micro_batches=(question.micro_batches,),
        optimizer=question.optimizer,
        depths=(question.devices,),
        replicas=(1,),
        schedules=ONE_F_ONE_B,
        recompute=recompute,
    )
    free = solve(model, cluster, job=job, time_limit=seconds)
    limit = int(SHARE * max(free.timeline.peaks))
    name = f"{question.model}, {question.devices} devices, {question.micro_batches} of "
    name += f"{question.batch // question.micro_batches}, {format_bytes(limit)}"
    print(f"{name if recompute is Recompute.CHOOSE else name + ', kept'}")
    for row, result in _rows(model, cluster, replace(job, memory=limit), free, seconds):
        print(f"{'':46} {row:16} {_told(result)}", flush=True)


def _rows(
    model: Model, cluster: Cluster, job: Job, free: Result, seconds: float
) -> Iterator[tuple[str, Result | None]]:
    yield "1F1B, no limit", free
    partition = _solved(model, cluster, job, seconds)
    yield "partition only", partition
    anything = replace(job, schedules=("any", *ONE_F_ONE_B))
    yield "order only", _solved(model, cluster, _fixed(anything, model, free), seconds)
    if partition is not None:
        yield "one, then other", _solved(model, cluster, _fixed(anything, model, partition), seconds)
    yield "joint", _solved(model, cluster, anything, seconds)


def _solved(model: Model, cluster: Cluster, job: Job, seconds: float) -> Result | None:
    try:
        return solve(model, cluster, job=job, time_limit=seconds)
    except InfeasibleError:
        return None


def _fixed(job: Job, model: Model, result: Result) -> Job:
    """The job with the partition of a result fixed."""
    ends = {stage.layers[-1] for stage in result.plan.stages}
    return replace(job, no_cut_after=tuple(name for name in model.names[:-1] if name not in ends))


def _told(result: Result | None) -> str:
    if result is None:
        return "does not fit"
    layers = "-".join(str(len(stage.layers)) for stage in result.plan.stages)
    in_flight = "-".join(str(stage.in_flight) for stage in result.plan.stages)
    again = sum(len(stage.recompute) for stage in result.plan.stages)
    return (
        f"{format_time(result.value):>9} {format_time(result.bound):>9} {result.gap:7.2%} {result.wall:5.0f}s  "
        f"{layers}, {in_flight}{f', {again} recomputed' if again else ''}, {result.plan.schedule.family}"
    )


if __name__ == "__main__":
    main()
