"""Checks of a plan's front-first sums against its stages and their times."""

from collections.abc import Iterator
from itertools import pairwise

from pipeplan.core.plan import Plan, PlanStage
from pipeplan.core.priority import Priority, Send
from pipeplan.core.schedule import Kind


def priority_faults(plan: Plan) -> Iterator[str]:
    """Yield what is wrong with the order of a plan's sums, their times, and what of them may be lost."""
    if not plan.priority:
        return
    for wrong, why in (
        (plan.period is None, "it has no period: they go on while the next step begins"),
        (plan.zero > 0, f"level {plan.zero} of ZeRO shares out what they bring; plan for level 0"),
        (plan.staleness > 0, "with staleness 1 all sums run beside the next batch; drop one of both"),
        (bool(plan.slices), "sequences are cut into slices, whose last backward is another one; drop one of both"),
        (plan.team > 1, f"teams of {plan.team} devices sum parts of layers; plan for whole layers"),
        (bool(plan.pipeline.tied), "stages share weights, whose sums wait for both; keep them on one stage"),
        (plan.schedule.two_lanes, "forwards run beside backwards; ask for a schedule with one lane"),
    ):
        if wrong:
            yield f"its sums run front layers first, and {why}"
    if len(plan.priority) != len(plan.stages):
        yield f"it orders the sums of {len(plan.priority)} stages and has {len(plan.stages)}"
        return
    for number, (stage, own) in enumerate(zip(plan.stages, plan.priority, strict=True)):
        yield from _of_stage(plan, number, stage, own)


def _of_stage(plan: Plan, number: int, stage: PlanStage, own: Priority) -> Iterator[str]:
    priced, what = plan.pipeline.stages[number], f"the sums of stage {number}"
    if own.sends and stage.replicas == 1:
        yield f"{what} are put in order, and it has one replica, which sums nothing"
    if own.sends and own.chunk < 1:
        yield f"{what} have chunks of {own.chunk} bytes; a chunk has at least one"
    if own.exposed != priced.reduce:
        yield f"{what} delay the next step by {own.exposed} ns by their order, and by {priced.reduce} ns by its reduce"
    if priced.buckets and own.sends:
        yield f"{what} leave front layers first, and in buckets; drop the buckets"
    rows: dict[str, Send] = {}
    for send in own.sends:
        first = rows.setdefault(send.layer, send)
        if send.layer not in stage.layers:
            yield f"{what} name {send.layer!r}, which is not one of its layers"
        if send.chunks < 1:
            yield f"{what} have a send of {send.chunks} chunks of {send.layer!r}; it has at least one"
        if (first.ready, first.needed) != (send.ready, send.needed):
            yield f"{what} have sends of {send.layer!r} that are ready or needed at different times; they are one unit"
    known = [rows[name] for name in stage.layers if name in rows]
    if any(a.ready > b.ready or a.needed > b.needed for a, b in pairwise(known)):
        yield f"{what} have layers that are ready or needed out of turn"
    last_backward = max(priced.duration(Kind.BACKWARD), priced.duration(Kind.WEIGHT_GRADIENT))
    first_forward = priced.duration(Kind.FORWARD) + priced.update
    if known and (known[-1].ready > last_backward or known[-1].needed > first_forward):
        yield (
            f"{what} are ready {known[-1].ready} ns before the end of a backward of {last_backward} ns, and needed "
            f"{known[-1].needed} ns into an update and a forward of {first_forward} ns"
        )
    for name, share in own.lost:
        if name not in rows:
            yield f"{what} may lose some of {name!r}, of which they sum nothing"
        if not 0 < share < 1:
            yield f"{what} may lose {share:g} of {name!r}; what is lost is a share above 0 and below 1"
    for name, _ in own.prices:
        if name not in rows:
            yield f"{what} have a price of {name!r}, of which they sum nothing"
    if len({name for name, _ in own.lost}) < len(own.lost):
        yield f"{what} say several times what of a layer may be lost; once is enough"
