"""Checks of a plan against its model and its cluster, and of its claims."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pipeplan.core.cluster import Cluster
from pipeplan.core.model import Model
from pipeplan.core.options import require
from pipeplan.core.plan import MemoryParts, Plan
from pipeplan.core.schedule import Kind
from pipeplan.core.shared_weights import tied_stages
from pipeplan.core.units import format_bytes
from pipeplan.core.validate.lanes import like_lanes
from pipeplan.core.validate.memory import most_in_flight, validate_memory
from pipeplan.core.validate.schedule import refuse, validate_schedule
from pipeplan.core.wording import counted


def validate_plan(plan: Plan, model: Model, cluster: Cluster) -> None:
    """Check a plan against the model and the cluster for which it was made.

    The order of checks: fingerprint, layers, devices, replicas and ranks; the schedule; memory and claims, recounted
    from the action lists.

    Parameters
    ----------
    plan : Plan
    model : Model
    cluster : Cluster

    Raises
    ------
    PlanError
        Listing every violation.

    Examples
    --------
    >>> result = pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, depths=2, replicas=1, schedules="gpipe")
    >>> pipeplan.validate_plan(result.plan, pipeplan.load_model("vgg-16"), pipeplan.load_cluster("4-v100-nvlink"))
    """
    for value, kind in ((plan, Plan), (model, Model), (cluster, Cluster)):
        require(value, kind)
    what = f"the plan for {plan.model!r}"
    refuse(what, [*_layers(plan, model), *_shares(plan), *_devices(plan, cluster), *_sizes(plan)])
    refuse(what, [*_ranks(plan), *_tied(plan, model)])
    validate_schedule(plan.schedule, len(plan.stages), plan.micro_batches, plan.pipeline.placement, plan.pipeline.tied)
    refuse(what, [*_claims(plan), *_memory(plan, cluster), *_limits(plan, cluster)])
    validate_memory(plan.schedule, plan.pipeline)


def _layers(plan: Plan, model: Model) -> Iterator[str]:
    if plan.fingerprint != model.fingerprint:
        yield (
            f"it was made for another model: its fingerprint is {plan.fingerprint}, that of {model.name!r} is "
            f"{model.fingerprint}; solve again for this model"
        )
    counts = Counter(name for stage in plan.stages for name in stage.layers)
    missing = [name for name in model.names if name not in counts]
    divided = _divided(plan)
    doubled = [name for name, count in counts.items() if count > 1 and name not in divided]
    known = set(model.names)
    unknown = [name for name in counts if name not in known]
    for names, fault in ((missing, "in no stage"), (doubled, "in several stages"), (unknown, "not in the model")):
        if names:
            yield f"{len(names)} layers are {fault}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
    if not (missing or doubled or unknown):
        yield from _order(plan, model)
    for number, stage in enumerate(plan.stages):
        if not stage.layers:
            yield f"stage {number} has no layers; drop it"
        for name, count in Counter(stage.recompute).items():
            if name not in stage.layers:
                yield f"stage {number} recomputes {name!r}, which is not one of its layers"
            if count > 1:
                yield f"stage {number} recomputes {name!r} {count} times; once is enough"


def _order(plan: Plan, model: Model) -> Iterator[str]:
    """Yield stages that list layers out of the model's order or read from a later stage."""
    place = {name: i for i, name in enumerate(model.names)}
    first = {name: s for s, stage in reversed(list(enumerate(plan.stages))) for name in stage.layers}
    for number, stage in enumerate(plan.stages):
        for a, b in pairwise(stage.layers):
            if place[a] > place[b]:
                yield f"its stages leave the model's order at layer {b!r}; stage {number} lists {a!r} before it"
                return
        for name in stage.layers:
            for source in model.layers[place[name]].inputs:
                if first[source] > number:
                    yield (
                        f"layer {name!r} on stage {number} reads {source!r}, which lies on stage {first[source]}; "
                        "tensors go forward only"
                    )
                    return


def _divided(plan: Plan) -> set[str]:
    """Return layers whose parts on neighbouring stages, last of one and first of the next, add up to the whole."""
    parts: dict[str, list[tuple[int, float]]] = {}
    for number, stage in enumerate(plan.stages):
        for name, share in stage.shares:
            parts.setdefault(name, []).append((number, share))
    found = set()
    for name, own in parts.items():
        numbers = [number for number, _ in own]
        joined = numbers == [n for n, stage in enumerate(plan.stages) if name in stage.layers] and all(
            b == a + 1 and plan.stages[a].layers[-1:] == (name,) and plan.stages[b].layers[:1] == (name,)
            for a, b in pairwise(numbers)
        )
        if joined and abs(sum(share for _, share in own) - 1) < 1e-6:
            found.add(name)
    return found


def _shares(plan: Plan) -> Iterator[str]:
    divided = _divided(plan)
    for number, stage in enumerate(plan.stages):
        for name, share in stage.shares:
            if name not in divided:
                yield (
                    f"stage {number} holds {share:g} of {name!r}, and the parts on it and its neighbours do not make "
                    "up the whole layer"
                )


def _devices(plan: Plan, cluster: Cluster) -> Iterator[str]:
    kinds = tuple(device.kind.name for device in cluster.devices)
    if plan.device_kinds != kinds:
        yield f"it was made for devices {', '.join(plan.device_kinds)}; the cluster has {', '.join(kinds)}"
    used = {device for stage in plan.stages for device in stage.devices}
    for device in sorted(used):
        if not 0 <= device < len(kinds):
            yield f"it uses device {device}; the cluster has devices 0 to {len(kinds) - 1}"
    yield from device_faults(plan)
    for number, stage in enumerate(plan.stages):
        if not stage.devices:
            yield f"stage {number} has no device"
        replicated = sorted({kinds[device] for device in stage.devices if 0 <= device < len(kinds)})
        if len(replicated) > 1:
            yield (
                f"stage {number} has replicas on {' and '.join(replicated)}, but its times and bytes hold for one kind "
                "of device only, and the slower kind would hold up the other; give each kind stages of its own"
            )


def device_faults(plan: Plan) -> Iterator[str]:
    """Yield devices that hold more stages, or replicas, than their rank is timed for."""
    timed = Counter(plan.ranks[rank] for homes in plan.pipeline.placement for rank in homes if rank < len(plan.ranks))
    for device, count in sorted(Counter(device for stage in plan.stages for device in stage.devices).items()):
        if count > max(timed[device], 1):
            yield f"it uses device {device} {count} times; its times are for {counted(max(timed[device], 1), 'stage')}"


def _sizes(plan: Plan) -> Iterator[str]:
    """Yield disagreements in the numbers of lists, ranks, stages and micro-batches; later checks rely on them."""
    used = sorted({device for stage in plan.stages for device in stage.devices})
    if sorted(plan.ranks) != used:
        yield f"its ranks run on devices {sorted(plan.ranks)}, its stages on {used}"
    if len(plan.schedule.orders) != len(plan.ranks):
        yield f"it has {len(plan.schedule.orders)} lists of actions for {len(plan.ranks)} ranks; write one per rank"
    if plan.pipeline.devices != len(plan.ranks) or len(plan.pipeline.stages) != len(plan.stages):
        yield (
            f"its times are for {len(plan.pipeline.stages)} stages on {plan.pipeline.devices} devices, it has "
            f"{len(plan.stages)} stages on {len(plan.ranks)}"
        )
    for number, (stage, homes) in enumerate(zip(plan.stages, plan.pipeline.placement, strict=False)):
        if stage.replicas != len(homes) or not all(0 <= rank < len(plan.ranks) for rank in homes):
            yield (
                f"stage {number} has {stage.replicas} replicas, its times are for {_named('rank', homes)} of "
                f"{len(plan.ranks)}"
            )
    if plan.micro_batch < 1:
        yield f"its micro-batches hold {plan.micro_batch} samples; they need at least one"
    if plan.schedule.micro_batches != plan.micro_batches:
        batch = f"{plan.micro_batches} of {plan.micro_batch} samples make its batch of {plan.batch}"
        yield f"its lists run {plan.schedule.micro_batches} micro-batches, but {batch}"


def _ranks(plan: Plan) -> Iterator[str]:
    for number, stage in enumerate(plan.stages):
        homes = plan.pipeline.placement[number]
        on = tuple(plan.ranks[rank] for rank in homes)
        if on != stage.devices:
            yield (
                f"stage {number} is timed for {_named('rank', homes)} on {_named('device', on)}, but says that it is "
                f"on {_named('device', stage.devices)}"
            )


def _tied(plan: Plan, model: Model) -> Iterator[str]:
    """Yield a fault unless exactly the stages that share weights, on unlike ranks, sum their gradients."""
    spans = [stage.layers for stage in plan.stages]
    wanted = tied_stages((tie.layers for tie in model.trained_ties), spans, plan.pipeline.placement)
    if plan.pipeline.tied != wanted:
        yield (
            f"stages {_listed(plan.pipeline.tied)} sum the gradients of shared weights; by the model's ties these are "
            f"stages {_listed(wanted)}"
        )


def _listed(groups: Sequence[Sequence[int]]) -> str:
    return "; ".join(" and ".join(map(str, group)) for group in groups) or "none"


def stage_claims(plan: Plan) -> Iterator[str]:
    """Yield claims on stage times, in-flight counts and the bound that the plan's tables contradict."""
    lanes = like_lanes(plan.schedule, plan.pipeline.placement)
    for number, (stage, priced) in enumerate(zip(plan.stages, plan.pipeline.stages, strict=True)):
        forward, backward = priced.total(Kind.FORWARD), priced.total(Kind.BACKWARD)
        if (stage.forward, stage.backward) != (forward, backward):
            yield (
                f"stage {number} takes {stage.forward} and {stage.backward} ns, but was simulated with {forward} and "
                f"{backward}"
            )
        homes = plan.pipeline.placement[number][::lanes]
        held = max(most_in_flight(plan.schedule.orders[rank], number) for rank in homes)
        if held > stage.in_flight:
            yield f"stage {number} says that it holds {stage.in_flight} micro-batches; its list makes it hold {held}"
    if plan.bound > plan.value:
        what = "step time" if plan.period is None else "period"
        yield f"its proven bound of {plan.bound} ns lies above its {what} of {plan.value} ns"


def _claims(plan: Plan) -> Iterator[str]:
    yield from stage_claims(plan)
    split = plan.schedule.stages_with(Kind.WEIGHT_GRADIENT)
    for number, (stage, priced) in enumerate(zip(plan.stages, plan.pipeline.stages, strict=True)):
        halves = priced.total(Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
        backward = halves if number in split else priced.total(Kind.BACKWARD)
        # A bottleneck is the time per sample, and its replicas take turns.
        if stage.forward + backward > stage.replicas * plan.micro_batch * plan.step_time:
            yield f"stage {number} alone takes longer than the step time of {plan.step_time} ns"


def _limits(plan: Plan, cluster: Cluster) -> Iterator[str]:
    """Yield ranks of several stages that may hold more than their device has; `validate_memory` checks the rest."""
    for rank, (device, limit) in enumerate(zip(plan.ranks, plan.pipeline.limits, strict=True)):
        has = cluster.devices[device].kind.memory
        if has is not None and limit > has and len(plan.pipeline.stages_on[rank]) > 1:
            yield f"rank {rank} may hold {format_bytes(limit)}, and device {device} has {format_bytes(has)}"


def _memory(plan: Plan, cluster: Cluster) -> Iterator[str]:
    rank_of = {device: rank for rank, device in reversed(list(enumerate(plan.ranks)))}
    for number, stage in enumerate(plan.stages):
        priced, parts = plan.pipeline.stages[number], stage.memory
        runtime = max(plan.pipeline.runtime[rank] for rank in plan.pipeline.placement[number])
        workspace = priced.workspace + (priced.forward_lane_workspace if plan.schedule.two_lanes else 0)
        needed = priced.resident + stage.in_flight * priced.held + workspace + runtime
        if needed > parts.total:
            yield (
                f"stage {number} counts {format_bytes(parts.total)}; with {stage.in_flight} micro-batches in flight it "
                f"needs {format_bytes(needed)}"
            )
        for device in stage.devices:
            limit = cluster.devices[device].kind.memory
            several = len(plan.pipeline.stages_on[rank_of[device]]) > 1  # then see `validate_memory`
            if limit is not None and parts.total > limit and not several:
                yield (
                    f"stage {number} needs {format_bytes(parts.total)} of device {device}'s {format_bytes(limit)}: "
                    f"weights {format_bytes(parts.weights)}{_frozen(parts)}, gradients "
                    f"{format_bytes(parts.gradients)}, optimiser {format_bytes(parts.optimizer)}, activations "
                    f"{format_bytes(parts.activations)} "
                    f"({stage.in_flight} in flight), workspace {format_bytes(parts.workspace)}, runtime "
                    f"{format_bytes(parts.runtime)}; hold fewer micro-batches, make them smaller, or move layers"
                )


def _frozen(parts: MemoryParts) -> str:
    return f", frozen weights {format_bytes(parts.frozen)}" if parts.frozen else ""


def _named(what: str, numbers: Sequence[int]) -> str:
    """Format numbers with their noun: ``'rank 3'``, ``'devices 0, 1'``."""
    return f"{what if len(numbers) == 1 else what + 's'} {', '.join(map(str, numbers))}"
