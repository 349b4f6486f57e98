"""Consistency checks of a plan: its claims are recomputed from the tables that it contains.

::

    orders + pipeline ──▶ simulator ──────────▶ step_time (or the largest load of an endless pipeline), period
    orders            ──▶ most in flight ─────▶ stages[].in_flight ──▶ memory.activations
    pipeline.stages   ──▶ resident, workspace ▶ memory.static, memory.workspace
    pipeline.stages   ──▶ buckets ────────────▶ reduce, or priority ▶ reduce
    transfers         ◀─▶ returns               one tensor, the same link there and back

`validate_plan` checks that a plan belongs to a model and a cluster.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

from pipeplan.core.cluster import Overlap
from pipeplan.core.job import OPTIMIZER_STATE, SHARDED, WHOLLY_SHARDED
from pipeplan.core.pipeline import Bucket, Transfer, exposed
from pipeplan.core.plan import Plan, PlanStage
from pipeplan.core.priority import with_sums_behind
from pipeplan.core.schedule import Kind
from pipeplan.core.validate.memory import validate_memory
from pipeplan.core.validate.plan import device_faults, stage_claims
from pipeplan.core.validate.priority import priority_faults
from pipeplan.core.validate.schedule import refuse, validate_schedule
from pipeplan.core.wording import counted
from pipeplan.simulate import makespan, period, rolling_period
from pipeplan.simulate.rolling import busiest

FORMATS = (2, 4, 8)
"""Bytes of a number in the formats of weights."""
_ROUNDING = 64
"""Bytes per layer by which optimiser state may differ from its share of the weights: every layer is rounded."""


def validate_claims(plan: Plan) -> None:
    """Check a plan's times, memory and bound against its own tables.

    Raises
    ------
    PlanError
        Listing every contradiction.
    """
    what = f"the plan for {plan.model!r}"
    refuse(what, [*_names(plan), *_places(plan), *_transfers(plan), *priority_faults(plan)])
    validate_schedule(plan.schedule, len(plan.stages), plan.micro_batches, plan.pipeline.placement, plan.pipeline.tied)
    refuse(what, [*_lists(plan), *_buckets(plan), *_memory(plan), *stage_claims(plan), *_step_time(plan)])
    validate_memory(plan.schedule, plan.pipeline)


def _names(plan: Plan) -> Iterator[str]:
    if not plan.stages:
        yield "it has no stages"
    if plan.optimizer not in OPTIMIZER_STATE:
        yield f"its optimizer {plan.optimizer!r} is not known; known are {', '.join(OPTIMIZER_STATE)}"
    counts = Counter(name for stage in plan.stages for name in set(stage.layers))
    parts: dict[str, list[float]] = {}
    for number, stage in enumerate(plan.stages):
        for name, share in stage.shares:
            parts.setdefault(name, []).append(share)
        if not stage.layers:
            yield f"stage {number} has no layers; drop it"
        for name, count in Counter(stage.layers).items():
            if count > 1:
                yield f"stage {number} lists layer {name!r} {count} times"
        for title, named in (("recomputes", stage.recompute), ("divides", tuple(name for name, _ in stage.shares))):
            for name in dict.fromkeys(named):
                if name not in stage.layers:
                    yield f"stage {number} {title} {name!r}, which is not one of its layers"
                if named.count(name) > 1:
                    yield f"stage {number} {title} {name!r} {named.count(name)} times; once is enough"
    yield from _mesh_faults(plan)
    if (plan.team > 1 and not (plan.shards or plan.sequence or plan.strategies)) or (plan.team == 1 and plan.shards):
        yield f"its teams have {counted(plan.team, 'device')} and share out {counted(len(plan.shards), 'parameter')}"
    for group in plan.pipeline.tied:
        if len({plan.teams[stage] for stage in group}) > 1:
            teams = " and ".join(str(plan.teams[stage]) for stage in group)
            yield f"stages {' and '.join(map(str, group))} share weights, of which teams of {teams} have unlike parts"
    for name, count in Counter(name for name, _ in plan.shards).items():
        if count > 1:
            yield f"its shards name parameter {name!r} {count} times; it has one axis"
    if plan.sequence and plan.team == 1:
        yield f"it splits {counted(len(plan.sequence), 'output')} along tokens, and has no teams that share them out"
    if plan.vocabulary is not None and (not plan.stages or plan.stages[-1].team == 1):
        yield f"it splits the loss behind {plan.vocabulary!r} along its classes, and no team of devices shares this out"
    elif plan.vocabulary is not None and plan.vocabulary not in plan.stages[-1].layers[-1:]:
        yield f"it splits the loss behind {plan.vocabulary!r}, which is not its last layer"
    for name, count in Counter(plan.sequence).items():
        if name not in counts:
            yield f"its sequence names {name!r}, which is not one of its layers"
        if count > 1:
            yield f"its sequence names layer {name!r} {count} times; once is enough"
    if plan.context and not plan.sequence:
        yield "it runs products or attention on parts of the tokens, and splits no output along tokens"
    for name, count in Counter(plan.context.products).items():
        if count > 1:
            yield f"its context names parameter {name!r} {count} times; once is enough"
        if name in dict(plan.shards):
            yield f"parameter {name!r} is shared out, and its context has it whole"
    for (name, number), count in Counter((name, number) for name, number, _ in plan.context.attention).items():
        if name not in counts:
            yield f"its context names {name!r}, which is not one of its layers"
        if count > 1:
            yield f"its context names attention {number} of layer {name!r} {count} times; once is enough"
    for name, count in counts.items():
        shares = parts.get(name, [])
        if count > 1 and len(shares) != count:
            yield f"layer {name!r} is in {count} stages, and {len(shares)} of them say which part they hold"
        if shares and abs(sum(shares) - 1) > 1e-6:
            yield f"the parts of layer {name!r} come to {sum(shares):g}, not to the whole"


def _places(plan: Plan) -> Iterator[str]:
    """Yield contradictions in ranks, devices, runtimes and memory limits of device kinds."""
    used = sorted({device for stage in plan.stages for device in stage.devices})
    yield from device_faults(plan)
    if sorted(plan.ranks) != used:
        yield f"its ranks run on devices {sorted(plan.ranks)}, its stages on {used}"
    limits: dict[str, set[int]] = {}
    for number, (stage, homes) in enumerate(zip(plan.stages, plan.pipeline.placement, strict=True)):
        on = tuple(plan.ranks[rank] for rank in homes)
        kinds = {plan.device_kinds[device] for device in stage.devices}
        if not stage.devices:
            yield f"stage {number} has no device"
        if on != stage.devices:
            yield f"stage {number} is timed on devices {list(on)}, but says that it is on {list(stage.devices)}"
        if len(kinds) > 1:
            yield f"stage {number} has replicas on {' and '.join(sorted(kinds))}; its times hold for one kind only"
        for rank in homes:
            limits.setdefault(plan.device_kinds[plan.ranks[rank]], set()).add(plan.pipeline.limits[rank])
            if plan.pipeline.runtime[rank] != stage.memory.runtime:
                yield (
                    f"rank {rank} has a runtime of {plan.pipeline.runtime[rank]} bytes, its stage {number} counts "
                    f"{stage.memory.runtime}"
                )
    for kind, found in limits.items():
        if len(found) > 1:
            yield f"devices of kind {kind!r} may hold {' and '.join(map(str, sorted(found)))} bytes; it is one number"


def _transfers(plan: Plan) -> Iterator[str]:
    """Yield transfers whose return differs in size or time, or whose resources do not join the stages' devices."""
    rows = zip(plan.pipeline.transfers, plan.pipeline.returns, pairwise(plan.stages), strict=True)
    node: dict[int, str] = {}
    for boundary, (there, back, (left, right)) in enumerate(rows):
        sizes = {transfer.size for transfer in (*there, *back)}
        if len(sizes) > 1:
            yield f"boundary {boundary} is crossed by {' and '.join(map(str, sorted(sizes)))} bytes; it is one number"
        for m, (out, home) in enumerate(zip(there, back, strict=True)):
            a, b = left.devices[m % left.replicas], right.devices[m % right.replicas]
            if (out.occupancy, out.latency) != (home.occupancy, home.latency):
                yield f"boundary {boundary}, micro-batch {m}: there and back take different times over one link"
            for transfer, source, target in ((out, a, b), (home, b, a)):
                yield from _resources(f"boundary {boundary}, micro-batch {m}", transfer, source, target, node)


def _resources(where: str, transfer: Transfer, source: int, target: int, node: dict[int, str]) -> Iterator[str]:
    """Yield wrong resources of a transfer: a link of its own within a node, the two nodes' cards between nodes.

    ``node`` collects the node of each device.
    """
    if transfer.resources == (f"d{source} to d{target}",) or transfer == Transfer():  # an empty one states nothing
        return
    words = [resource.split() for resource in transfer.resources]
    if [word[::2] for word in words] != [["node", "card"], ["node", "card"]] or [w[-1] for w in words] != ["out", "in"]:
        yield f"{where}: the links {list(transfer.resources)} do not lead from device {source} to device {target}"
        return
    for device, word in zip((source, target), words, strict=True):
        if node.setdefault(device, word[1]) != word[1]:
            yield f"{where}: device {device} lies in node {word[1]}, and in node {node[device]} elsewhere"
    if words[0][1] == words[1][1]:
        yield f"{where}: a transfer within node {words[0][1]} does not use the network"


def _lists(plan: Plan) -> Iterator[str]:
    """Yield contradictions between the action lists and the plan's micro-batches and reductions."""
    if plan.schedule.micro_batches != plan.micro_batches:
        yield f"its lists run {plan.schedule.micro_batches} micro-batches, it says {plan.micro_batches}"
    run = plan.schedule.slices
    if len(plan.slices or (0,)) != run or any(stage.slices not in (1, run) for stage in plan.pipeline.stages):
        yield f"its lists run {run} slices of each micro-batch; it has the tokens or the times of another number"
    tied = {stage for group in plan.pipeline.tied for stage in group}
    for group in plan.pipeline.tied:
        if len(group) < 2 or list(group) != sorted(set(group)):
            yield f"the group {list(group)} of tied stages is not ascending, or has less than two"
    reduced = plan.schedule.stages_with(Kind.REDUCE)
    for number, stage in enumerate(plan.stages):
        if number in reduced and stage.replicas == 1 and number not in tied:
            yield f"stage {number} has one replica and no tied weights, but a reduction of gradients"


def _buckets(plan: Plan) -> Iterator[str]:
    """Yield contradictions between a stage's buckets, its layers, its reduction and its gather.

    Joined backwards hide sums of all stages on their ranks, which take turns. Split ones hide their own stage's.
    """
    split = bool(plan.schedule.stages_with(Kind.WEIGHT_GRADIENT))
    hiding: dict[tuple[int, ...], int] = defaultdict(int)
    for number in range(len(plan.stages)):
        stage, priced, ranks = plan.stages[number], plan.pipeline.stages[number], plan.pipeline.placement[number]
        last_backward = max(priced.duration(Kind.BACKWARD), priced.duration(Kind.WEIGHT_GRADIENT))
        hiding[ranks] = last_backward + (0 if split else hiding[ranks])
        later = zip(plan.pipeline.stages[number + 1 :], plan.pipeline.placement[number + 1 :], strict=True)
        waited = 0 if split else sum(own.reduce for own, on in later if on == ranks)
        what = f"sums of stage {number}", "summed", "behind its last backward", "reduction"
        yield from _exposed(*what, stage, priced.buckets, hiding[ranks] + waited, priced.reduce)
        if priced.gather and (stage.replicas == 1 or not plan.zero):
            yield f"stage {number} gathers, although its replicas share out nothing"
        what = f"gathers of stage {number}", "needed", "before its first forward", "gather"
        yield from _exposed(*what, stage, priced.gather_buckets, priced.duration(Kind.FORWARD), priced.gather)


def _exposed(
    what: str, done: str, where: str, name: str, stage: PlanStage, buckets: Sequence[Bucket], most: int, time: int
) -> Iterator[str]:
    """Yield contradictions of some buckets beside a pass of ``most`` nanoseconds that leave ``time`` of it exposed."""
    if not buckets:
        return
    layers = sum(bucket.layers for bucket in buckets)
    if layers and layers != len(stage.layers):
        yield f"the {what} have buckets of {layers} layers; it has {len(stage.layers)}"
    if any(a.ready < b.ready for a, b in pairwise(buckets)) or buckets[-1].ready < 0:
        yield f"the {what} have a bucket that is {done} out of turn"
    if buckets[0].ready > most:
        yield f"the {what} have a bucket that is {done} {buckets[0].ready} ns from the end of a pass of {most} ns"
    if exposed(buckets) != time:
        yield f"the {what} take {exposed(buckets)} ns {where} by its buckets, and {time} ns by its {name}"


def _memory(plan: Plan) -> Iterator[str]:
    state = OPTIMIZER_STATE[plan.optimizer]
    stated = (plan.state_bytes or 0) + (plan.gradient_bytes or 0)
    for number, (stage, priced) in enumerate(zip(plan.stages, plan.pipeline.stages, strict=True)):
        parts, forward_workspace = stage.memory, priced.forward_lane_workspace
        claimed = {
            "weights, gradients and optimizer": (parts.static, priced.resident),
            "activations": (parts.activations, stage.in_flight * priced.held),
            "workspace": (
                parts.workspace,
                priced.workspace + (forward_workspace if plan.schedule.two_lanes else 0),
            ),
        }
        if plan.zero < SHARDED and plan.gradient_bytes is None:
            claimed["gradients"] = parts.gradients, parts.weights
        if forward_workspace > priced.workspace:
            yield f"stage {number} needs more workspace for forwards alone ({forward_workspace}) than for all actions"
        rounded = _ROUNDING * (len(stage.layers) + len(stage.shares)) * (1 + state + stated)
        for what, (has, needs) in claimed.items():
            if has != needs:
                yield f"stage {number} counts {has} bytes of {what}; by its tables these are {needs}"
        sharing = stage.replicas if plan.zero else 1
        weights = parts.weights * (stage.replicas if plan.zero == WHOLLY_SHARDED else 1)
        if plan.zero == SHARDED and stage.replicas > 1:  # the whole, and a share
            weights = weights * stage.replicas // (stage.replicas + 1)
        whole = parts.gradients * (stage.replicas if plan.zero >= SHARDED else 1)
        of_gradients = [weights] if plan.gradient_bytes is None else _in_formats(weights, plan.gradient_bytes)
        if all(abs(whole - one) > sharing * rounded for one in of_gradients):
            yield (
                f"stage {number} counts {parts.gradients} bytes of gradients for {parts.weights} bytes of weights at "
                f"level {plan.zero} of ZeRO, and has {stage.replicas} replicas"
            )
        weights //= 1 + plan.staleness  # of which there is one state
        ways = [state * weights, (2 + 2 * state) * weights]  # 16-bit weights have a master copy
        if plan.state_bytes is not None:
            ways = _in_formats(weights, plan.state_bytes)
        if all(abs(sharing * parts.optimizer - whole) > sharing * rounded for whole in ways):
            yield (
                f"stage {number} counts {parts.optimizer} bytes of optimiser state for {parts.weights} bytes of "
                f"weights, {stage.replicas} replicas, level {plan.zero} of ZeRO: not what {plan.optimizer} keeps"
            )


def _in_formats(weights: int, each: int) -> list[int]:
    """Bytes for as many numbers as weights of so many bytes have in one of the formats, ``each`` for a number."""
    return [weights // size * each for size in FORMATS]


def _step_time(plan: Plan) -> Iterator[str]:
    simulated = makespan(plan.schedule, with_sums_behind(plan.pipeline, plan.priority))
    if plan.period is not None:
        long_run = (rolling_period if plan.staleness else period)(plan.schedule, plan.pipeline)
        if (plan.step_time, plan.period) != (simulated, long_run):
            yield (
                f"it states {plan.step_time} ns for a step and {plan.period} ns from step to step, and its tables give "
                f"{simulated} ns and {long_run} ns"
            )
    elif plan.step_time != simulated and plan.step_time not in largest_loads(plan):
        yield (
            f"it states {plan.step_time} ns, and its tables give {simulated} ns for a step (or "
            f"{max(largest_loads(plan))} ns per sample for an endless pipeline)"
        )


def largest_loads(plan: Plan) -> tuple[int, int]:
    """Return the nanoseconds per sample of an endless pipeline, links rounded down and up.

    The search rounds down; plans with divided layers round up.
    """
    many, samples = plan.micro_batches, plan.batch
    sends = [min(transfer.occupancy for transfer in row) for row in plan.pipeline.transfers]
    # Without overlap a stage is also busy while it sends to both neighbours.
    waits = [0, *sends, 0] if plan.pipeline.overlap is Overlap.NONE else [0] * (len(plan.stages) + 1)
    # Largest load of a replica: its share of the micro-batches and the reduction, per sample, rounded up.
    stages = max(
        -(-(-(-many // stage.replicas) * (own.total(Kind.FORWARD, Kind.BACKWARD) + sum(sent)) + own.reduce) // samples)
        for stage, own, sent in zip(plan.stages, plan.pipeline.stages, pairwise(waits), strict=True)
    )
    if plan.pipeline.overlap is Overlap.NONE:
        return stages, stages
    # With overlap links are servers of their own: nanoseconds that the busiest resource of each boundary is occupied.
    busy = [busiest(row, many) * send for row, send in zip(plan.pipeline.transfers, sends, strict=True)]
    return max([stages, *(time // samples for time in busy)]), max([stages, *(-(-time // samples) for time in busy)])


def _mesh_faults(plan: Plan) -> Iterator[str]:
    """Yield what is wrong with the meshes of teams, and with how layers run on them."""
    axes = {name: len(stage.mesh) for stage in plan.stages if stage.mesh for name in stage.layers}
    strategies = dict(plan.strategies)
    for number, stage in enumerate(plan.stages):
        if stage.mesh and prod(stage.mesh) != stage.team:
            sizes = " x ".join(map(str, stage.mesh))
            yield f"stage {number} has teams of {stage.team} devices on a mesh of {sizes}; that has {prod(stage.mesh)}"
        if stage.links and len(stage.links) != len(stage.mesh):
            yield f"stage {number} names links of {len(stage.links)} axes, and its mesh has {len(stage.mesh)}"
        if stage.sharing and len(stage.sharing) != len(stage.mesh):
            yield f"stage {number} names sharing of {len(stage.sharing)} axes, and its mesh has {len(stage.mesh)}"
    for name, count in Counter(name for name, _ in plan.strategies).items():
        if count > 1:
            yield f"its strategies name layer {name!r} {count} times; once is enough"
    for name in axes:
        if name not in strategies:
            yield f"layer {name!r} is on a mesh, and no strategies say how it runs there"
    for name, own in strategies.items():
        entries = {len(each) for each in (own.input, own.output) if each} | {len(each) for each in own.sums.values()}
        entries |= {len(each) for pair in own.operators.values() for each in pair}
        entries |= {len(copy.placements) for copy in own.copies.values()}
        if name not in axes:
            yield f"its strategies name {name!r}, which is no layer on a mesh"
        elif entries - {axes[name]}:
            yield f"its strategies of layer {name!r} have not an entry for each of the {axes[name]} axes of the mesh"
    if strategies and (plan.shards or plan.sequence or plan.vocabulary is not None):
        yield "it has strategies of layers on meshes, and shards, sequence or vocabulary; a plan has one of both"
    meshes = {stage.mesh for stage in plan.stages}
    if len(meshes) > 1 and max(map(len, meshes)) > 1:
        yield "its stages have unlike meshes of several axes"
