"""From a judged partition to the Plan that leaves the house."""

from itertools import pairwise

from pipeplan.cluster import Cluster
from pipeplan.model import Model
from pipeplan.plan import MemoryParts, Plan, PlanStage
from pipeplan.pricing import assemble
from pipeplan.search.judge import Judged


def draft(model: Model, cluster: Cluster, optimizer: str, judged: Judged, bound: int) -> Plan:
    """The plan of a judged partition, with the bound that was proved.

    For the bottleneck objective ``step_time`` is the largest stage load, as everywhere.
    """
    candidate = judged.candidate
    chain = candidate.chain
    return Plan(
        model=model.name,
        fingerprint=model.fingerprint,
        cluster=cluster.name,
        device_kinds=tuple(device.kind.name for device in cluster.devices),
        micro_batch=chain.micro_batch,
        micro_batches=candidate.micro_batches,
        optimizer=optimizer,
        stages=tuple(_stage(judged, s, a, b) for s, (a, b) in enumerate(pairwise(judged.boundaries))),
        schedule=candidate.family.write(candidate.replicas, candidate.micro_batches),
        ranks=tuple(device.index for device in chain.devices),
        step_time=judged.value,
        bound=bound,
        pipeline=assemble(chain, cluster, judged.boundaries),
    )


def _stage(judged: Judged, s: int, a: int, b: int) -> PlanStage:
    candidate = judged.candidate
    chain = candidate.chain
    in_flight = candidate.in_flight[s]
    received = int(chain.boundary[a - 1]) if a else 0
    return PlanStage(
        layers=chain.names[a:b],
        devices=(chain.devices[s].index,),
        forward=int(chain.forward[s, a:b].sum()),
        backward=int(chain.backward[s, a:b].sum()),
        in_flight=in_flight,
        memory=MemoryParts(
            weights=int(chain.parameters[a:b].sum()),
            gradients=int(chain.gradients[a:b].sum()),
            optimizer=int(chain.optimizer[a:b].sum()),
            activations=in_flight * (int(chain.saved[a:b].sum()) + received),
            workspace=int(candidate.problem.workspace[a:b].max()),
            runtime=int(chain.runtime[s]),
        ),
    )
