"""Build a `Plan` from an evaluated candidate."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job, Objective, Recompute
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Stage
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.core.priority import with_sums_behind
from pipeplan.core.schedule import Kind
from pipeplan.core.splits import Mix, Splitting
from pipeplan.core.strategies import LayerStrategies
from pipeplan.costs.in_turn import Holders
from pipeplan.costs.sharding.mixed import kinds_of
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.space.candidates import Candidate
from pipeplan.simulate.islands import longest_makespan


def build_plan(model: Model, cluster: Cluster, job: Job, evaluated: EvaluatedPlan, bound: int) -> Plan:
    """Return the plan of an evaluated partition, with its proven bound in nanoseconds.

    For the bottleneck objective ``step_time`` is the largest stage load. Only for a long run the plan has a period.
    """
    candidate = evaluated.candidate
    chain = candidate.chain
    pipeline = evaluated.pipeline
    long_run = job.objective is Objective.PERIOD
    recomputes = job.recompute is Recompute.FULL
    replicated = max(candidate.replicas) > 1  # else all levels of ZeRO are alike
    spans = list(enumerate(pairwise(evaluated.boundaries)))
    again = candidate.recompute(evaluated.boundaries)
    kept = Holders.of(chain, evaluated.boundaries, pipeline.placement)
    return Plan(
        model=model.name,
        fingerprint=model.fingerprint,
        cluster=cluster.name,
        device_kinds=tuple(device.kind.name for device in cluster.devices),
        micro_batch=chain.micro_batch,
        micro_batches=candidate.micro_batches,
        optimizer=job.optimizer,
        state_bytes=job.state_bytes,
        gradient_bytes=job.gradient_bytes,
        slices=() if model.slicing is None else model.slicing.cut,
        stages=tuple(
            _stage(candidate, pipeline.stages[s], (s, a, b), kept, range(a, b) if recomputes else again[s])
            for s, (a, b) in spans
        ),
        schedule=evaluated.schedule,
        ranks=evaluated.candidate.ranks,
        step_time=_alone(evaluated) if long_run else evaluated.value,
        bound=bound,
        pipeline=pipeline,
        zero=chain.zero if replicated else min(job.zero, default=0),
        period=evaluated.value if long_run else None,
        staleness=job.staleness,
        priority=evaluated.priority,
    )


def _alone(evaluated: EvaluatedPlan) -> int:
    """Nanoseconds of a step that no other one follows."""
    if not evaluated.priority:
        return longest_makespan(evaluated.schedule, evaluated.pipeline)
    return longest_makespan(evaluated.schedule, with_sums_behind(evaluated.pipeline, evaluated.priority))


def shared_out(plan: Plan, model: Model, split: Splitting | None) -> Plan:
    """Return the plan of a question in which teams are devices as a plan for the whole model."""
    if split is None:
        return replace(plan, fingerprint=model.fingerprint)
    rows = [_on_mesh(plan, stage, model, split) for stage in plan.stages]
    return replace(
        plan,
        fingerprint=model.fingerprint,
        stages=tuple(stage for stage, _ in rows),
        strategies=tuple((name, own) for _, strategies in rows for name, own in strategies.items()),
        parallelism=split.parallelism if plan.team > 1 else (),
    )


def _on_mesh(
    plan: Plan, stage: PlanStage, model: Model, split: Splitting
) -> tuple[PlanStage, dict[str, LayerStrategies]]:
    """Return a stage with the mesh of its teams, and how its layers run there.

    A team in a mix that splits nothing is one device: the others would do the same work.
    """
    own, kind = split.at(stage.team), plan.device_kinds[stage.devices[0]]
    if own is None:
        return stage, {}
    if isinstance(split, Mix):
        kind, _ = kinds_of(split)[kind]
    every = dict(zip(model.names, own.strategies[kind, plan.micro_batch], strict=True))
    strategies = {name: every[name] for name in stage.layers}
    if isinstance(split, Mix) and not own.sequence and not any(each.splits_any for each in strategies.values()):
        return replace(stage, team=1), {}
    return replace(stage, mesh=own.sizes, links=dict(own.links)[kind], sharing=own.sharing), strategies


def _stage(
    candidate: Candidate, priced: Stage, span: tuple[int, int, int], kept: Sequence[Holders], again: Sequence[int]
) -> PlanStage:
    """The stage of layers a … b − 1; ``span``: its number, a and b. ``again``: the layers that it recomputes."""
    s, a, b = span
    chain, in_flight = candidate.chain, candidate.in_flight[s]
    copies = [each.weights for each in kept if each.copied(s)]
    copied = sum(shared.kept for shared in copies)
    return PlanStage(
        layers=chain.names[a:b],
        devices=tuple(device.index for device in chain.groups[s]),
        forward=priced.total(Kind.FORWARD),
        backward=priced.total(Kind.BACKWARD),
        in_flight=in_flight,
        memory=MemoryParts(
            weights=int(chain.weights[s, a:b].sum()) + copied,
            gradients=int(chain.gradients[s, a:b].sum()) + sum(shared.gradients for shared in copies),
            optimizer=int(chain.optimizer[s, a:b].sum() + sum(shared.optimizer[s] for shared in copies)),
            activations=in_flight * priced.held,
            workspace=priced.workspace + (priced.forward_lane_workspace if candidate.family.two_lanes else 0),
            runtime=int(chain.runtime[s]),
            frozen=int(chain.frozen[s, a:b].sum()) + sum(shared.frozen for shared in copies),
        ),
        recompute=tuple(chain.names[i] for i in again),
        team=chain.groups[s][0].kind.team,
    )
