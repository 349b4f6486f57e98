"""A plan with replicas, made by hand, with its model and cluster."""

from dataclasses import replace
from itertools import pairwise
from math import lcm

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.schedules import one_forward_one_backward
from pipeplan.simulate import simulate

MIB = 2**20
LIMIT = 64 * MIB


def two_nodes() -> Cluster:
    """Four devices of one kind and, in a second node, two of another."""
    kinds = {name: DeviceKind(name, memory=LIMIT) for name in ("unit", "slow")}
    return Cluster("4 + 2", kinds, (Node(("unit",) * 4), Node(("slow",) * 2)), Link(10**9, 1), Overlap.COPY)


def replicated_answer() -> tuple[Plan, Model, Cluster]:
    """Six layers on stages of 3, 1 and 2 replicas with 7 micro-batches; ranks take the devices in another order.

    ::

        stage 0   l0 l1       ranks 0 1 2   devices 2 0 1         stage 0 recomputes l1
        stage 1   l2          rank 3        device 3
        stage 2   l3 l4 l5    ranks 4 5     devices 5 4
    """
    model = model_of([4] * 6, saved=[MIB] * 6, parameters=[400] * 6, kinds=("unit", "slow"))
    spans = ((0, 2), (2, 3), (3, 6))
    placement, ranks, in_flight = ((0, 1, 2), (3,), (4, 5)), (2, 0, 1, 3, 5, 4), (2, 3, 1)
    reduce, held = (30, 0, 50), (MIB, MIB, 3 * MIB)
    stages = tuple(
        Stage(4 * (b - a), 8 * (b - a), update=2, reduce=reduce[s], held=held[s], workspace=MIB)
        for s, (a, b) in enumerate(spans)
    )
    periods = [lcm(len(a), len(b)) for a, b in pairwise(placement)]

    def ways(name: str) -> tuple[tuple[Transfer, ...], ...]:
        return tuple(
            tuple(Transfer(MIB, 3 + p % 2, 1, (f"{name} {s}.{p}", "card")) for p in range(period))
            for s, period in enumerate(periods)
        )

    pipeline = Pipeline(
        stages, placement, ways("down"), ways("up"), Overlap.COPY, runtime=(MIB,) * 6, limits=(LIMIT,) * 6
    )
    schedule = one_forward_one_backward((3, 1, 2), 7, in_flight)
    cluster = two_nodes()
    plan = Plan(
        model=model.name,
        fingerprint=model.fingerprint,
        cluster=cluster.name,
        device_kinds=tuple(device.kind.name for device in cluster.devices),
        micro_batch=1,
        micro_batches=7,
        optimizer="sgd",
        stages=tuple(
            PlanStage(
                layers=model.names[a:b],
                devices=tuple(ranks[rank] for rank in placement[s]),
                forward=stages[s].forward,
                backward=stages[s].backward,
                in_flight=in_flight[s],
                memory=MemoryParts(activations=in_flight[s] * held[s], workspace=MIB, runtime=MIB),
                recompute=("l1",) if s == 0 else (),
            )
            for s, (a, b) in enumerate(spans)
        ),
        schedule=schedule,
        ranks=ranks,
        step_time=0,
        bound=0,
        pipeline=pipeline,
    )
    return replace(plan, step_time=simulate(schedule, pipeline).makespan), model, cluster
