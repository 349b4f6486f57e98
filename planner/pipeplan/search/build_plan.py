"""Build a `Plan` from an evaluated candidate."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from pipeplan.core import words
from pipeplan.core.cluster import Cluster
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.job import Job, Objective, Recompute
from pipeplan.core.model import Model
from pipeplan.core.operators import BY_HEADS, BY_RING, Mix, OperatorGraph, Splitting
from pipeplan.core.pipeline import Stage
from pipeplan.core.plan import Context, MemoryParts, Plan, PlanStage
from pipeplan.core.schedule import Kind
from pipeplan.core.weight_names import shard_name
from pipeplan.core.words import LayerWords, MeshSplit
from pipeplan.costs.teams.signatures import applicable, ends_of
from pipeplan.search.evaluate import EvaluatedPlan


def build_plan(model: Model, cluster: Cluster, job: Job, evaluated: EvaluatedPlan, bound: int) -> Plan:
    """Return the plan of an evaluated partition, with its proven bound in nanoseconds.

    For the bottleneck objective ``step_time`` is the largest stage load. Only for a long run the plan has a period.
    """
    candidate = evaluated.candidate
    chain = candidate.chain
    pipeline = evaluated.pipeline
    long_run = job.objective is Objective.PERIOD
    replicated = max(candidate.replicas) > 1  # else all levels of ZeRO are alike
    spans = list(enumerate(pairwise(evaluated.boundaries)))
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
        stages=tuple(_stage(evaluated, pipeline.stages[s], s, a, b, job) for s, (a, b) in spans),
        schedule=evaluated.schedule,
        ranks=evaluated.candidate.ranks,
        step_time=evaluated.timeline.makespan if long_run else evaluated.value,
        bound=bound,
        pipeline=pipeline,
        zero=chain.zero if replicated else min(job.zero, default=0),
        period=evaluated.value if long_run else None,
    )


def shared_out(plan: Plan, model: Model, split: Splitting | None) -> Plan:
    """Return the plan of a question in which teams are devices as a plan for the whole model."""
    if split is None:
        return plan
    if isinstance(split, MeshSplit):
        links = dict(split.links)
        stages = tuple(
            replace(stage, mesh=split.sizes, links=links[plan.device_kinds[stage.devices[0]]], sharing=split.sharing)
            for stage in plan.stages
        )
        words = tuple(
            (layer.name, split.of(layer.operators, i) if layer.operators else LayerWords())
            for i, layer in enumerate(model.layers)
        )
        return replace(plan, fingerprint=model.fingerprint, stages=stages, words=words)
    own = {name: split.at(stage.team) for stage in plan.stages for name in stage.layers}
    shards: dict[str, tuple[tuple[str, ShardAxis], ...]] = {}
    contexts: list[Context] = []
    for i, layer in enumerate(model.layers):
        if layer.operators and (here := own[layer.name]) is not None:
            graph = model.operators[layer.operators]
            found = applicable(graph, tuple(here.of(layer.operators).items()), ends_of(split.sequence, i))
            weights = {weight.name for weight in graph.weights}
            shards[layer.name] = tuple(
                (shard_name(layer.name, name), graph.shard_axis(name, axis)) for name, axis in found if name in weights
            )
            contexts.append(_context(layer.name, graph, dict(found)))
    last = model.layers[-1]
    here = own[last.name] if last.operators else None
    is_split = here is not None and model.operators[last.operators].loss_name in here.of(last.operators)
    parts = tuple(layer.name for layer, cut in zip(model.layers, split.sequence, strict=False) if cut)
    sequence = parts if plan.team > 1 else ()
    # A team in a mix that splits nothing is one device: the others would do the same work.
    idle = [
        not sequence and not any(shards.get(name) or (is_split and name == last.name) for name in stage.layers)
        for stage in plan.stages
    ]
    fewer = (replace(stage, team=1) if alone else stage for stage, alone in zip(plan.stages, idle, strict=True))
    return replace(
        plan,
        fingerprint=model.fingerprint,
        stages=tuple(fewer) if isinstance(split, Mix) else plan.stages,
        shards=tuple(each for row in shards.values() for each in row),
        sequence=sequence,
        context=Context(
            tuple(dict.fromkeys(name for each in contexts for name in each.products)),
            tuple(row for each in contexts for row in each.attention),
        ),
        vocabulary=last.name if is_split else None,
    )


def _context(layer: str, graph: OperatorGraph, found: Mapping[str, int]) -> Context:
    """Return what a layer runs on parts of the tokens because its split says so."""
    products = [
        shard_name(layer, weight.name)
        for each in graph.operators
        if each.product and each.name in found
        for weight in each.weights
        if len(weight.loops) > 1
    ]
    ways = {BY_HEADS: words.BY_HEADS, BY_RING: words.BY_RING}
    attention = [
        (layer, number, ways.get(found[each.name], words.BY_KEYS))
        for number, each in enumerate(each for each in graph.operators if each.attention is not None)
        if each.name in found
    ]
    return Context(tuple(products), tuple(attention))


def _stage(evaluated: EvaluatedPlan, priced: Stage, s: int, a: int, b: int, job: Job) -> PlanStage:
    candidate = evaluated.candidate
    chain = candidate.chain
    in_flight = candidate.in_flight[s]
    again = range(a, b) if job.recompute is Recompute.FULL else candidate.problem.recompute(s, a, b) or ()
    copies = chain.copies(a, b)
    copied = sum(shared.parameters for shared in copies)
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
