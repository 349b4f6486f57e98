"""Random plans, searched or not, as the referee prices and plays them: every figure of every stage and transfer."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import pytest

from helpers.quick import part, rarely
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Bucket, Pipeline, exposed, layer_counts
from pipeplan.core.pipeline import Stage as PricedStage
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.timeline import Span
from pipeplan.costs.assembly import assemble
from pipeplan.costs.chain import Chain
from pipeplan.costs.pricing import price
from pipeplan.simulate import makespan, period, simulate
from referee import costs
from referee import simulate as play
from referee.bridge import objects
from referee.chosen import chosen
from referee.costs import ContradictionError, Groups
from referee.documents import Document, Question
from referee.prices import Prices, Stage, Way
from referee.questions import question
from referee.rings import sum_of_copies
from referee.schedules import families, names, write

HOME = 2428
"""A plan with other buckets for all gradients than for those that no other stage has."""
PRICED = (
    *("batch", "optimizer", "state_bytes", "gradient_bytes", "memory", "reserve", "objective", "extrapolate"),
    *("recompute", "overlap_reduction", "schedules"),
)
"""What a job says of prices; the rest is about the space."""
FIGURES = tuple(name for name in Stage.__dataclass_fields__ if name not in ("runtime", "limit", "slices"))


def document_of(number: int) -> Document:
    """A random question with nothing but prices in its job; a half of the models without ties get one."""
    document, random = question(number), Random(f"ties {number}")
    for name in ("operators", "slice_profiles"):
        document["model"].pop(name, None)
    layers = [{name: own for name, own in each.items() if name != "operators"} for each in document["model"]["layers"]]
    document["model"]["layers"] = layers
    if "ties" not in document["model"] and random.random() < 0.5:
        tied = sorted(random.sample(range(len(layers)), min(len(layers), random.choice((2, 2, 3)))))
        first = layers[tied[0]]
        first["parameters"] = first["parameters"] or 24
        size = random.choice((first["parameters"], first["parameters"] // 8 * 4 or first["parameters"]))
        document["model"]["ties"] = [{"layers": [layers[i]["name"] for i in tied], "parameters": size}]
    document["job"] = {name: value for name, value in document["job"].items() if name in PRICED}
    return document


def drawn_groups(random: Random, asked: Question, count: int) -> Groups:
    """Any devices of one kind for each stage, at levels 2 and 3 of ZeRO equally many, among which work divides."""
    left, found = random.sample(asked.devices, len(asked.devices)), []
    depth = 1 if asked.level > 1 and asked.sharing else random.randint(1, asked.n)
    width = random.choice([r for r in (1, 2, 3) if count % r == 0])
    while left and len(found) < depth:
        kind = random.choice(left).kind
        own = [device for device in left if device.kind == kind]
        r = width if asked.level > 1 else random.randint(1, min(len(own), count))
        if len(own) < r:
            break
        found.append(tuple(sorted(own[:r], key=lambda device: device.number)))
        left = [device for device in left if device not in found[-1]]
    return tuple(found)


def plans(document: Document, random: Random) -> Iterator[tuple[Question, int, Groups, list[range], list[list[int]]]]:
    """One plan at each level: micro-batch size, devices and layers of each stage, and which of these are recomputed."""
    for level in range(4 if "objective" not in document["job"] else 2):
        asked = Question(document, level)
        try:
            size = random.choice(costs.sizes(asked))
        except ContradictionError:
            return
        groups = drawn_groups(random, asked, asked.batch // size)
        if groups:
            cuts = [0, *sorted(random.sample(range(1, asked.n), len(groups) - 1)), asked.n]
            layers = [range(a, b) for a, b in pairwise(cuts)]
            chosen = asked.job["recompute"] == "choose"
            share = 1 if asked.job["recompute"] == "full" else chosen * random.choice((0, 0.5))
            yield asked, size, groups, layers, [[i for i in own if random.random() < share] for own in layers]


def priced(
    parsed: tuple[Model, Cluster, Job],
    asked: Question,
    size: int,
    groups: Groups,
    layers: list[range],
    again: list[list[int]],
) -> tuple[Chain, Pipeline]:
    """The planner's tables of layers, and its pipeline of a plan."""
    model, cluster, job = parsed
    devices = [tuple(cluster.devices[device.number] for device in own) for own in groups]
    chain = price(model, cluster, devices, size, replace(job, zero=(asked.level,)))
    repeated = [[] if asked.job["recompute"] == "full" else own for own in again]
    plan = chain, cluster, (0, *accumulate(map(len, layers))), repeated
    pipeline = assemble(*plan)
    sums, gathers = (
        [layer_counts(row) or None for row in rows] for rows in zip(*map(_buckets, pipeline.stages), strict=True)
    )
    assert pipeline.coupled == (asked.level > 1), "replicas begin passes together where these wait for collectives"
    assert assemble(*plan, sums, gathers) == pipeline, "the best buckets are none of those that may be given"
    return chain, pipeline


def _buckets(stage: PricedStage) -> tuple[Sequence[Bucket], Sequence[Bucket]]:
    assert all(bucket.time for bucket in (*stage.buckets, *stage.gather_buckets)), "a bucket of nothing"
    for buckets, time in ((stage.buckets, stage.reduce), (stage.gather_buckets, stage.gather)):
        assert not buckets or exposed(buckets) == time, "buckets take another time than what is left of them"
    return stage.buckets, stage.gather_buckets


def table_faults(
    chain: Chain,
    layers: list[range],
    again: list[list[int]],
    stages: list[Stage],
    ways: list[list[tuple[Way, Way]]],
    count: int,
) -> Iterator[str]:
    """Tables that say more than a plan has: bounds are made of them."""
    for s, (own, stage) in enumerate(zip(layers, stages, strict=True)):
        a, b = own.start, own.stop
        if chain.stays(s, a, b) != stage.resident:
            yield f"{chain.stays(s, a, b)} bytes stay on stage {s}, not {stage.resident}"
        for name in ("forward", "backward"):
            least, time = int(getattr(chain, name)[s, a:b].sum()), getattr(stage, name)
            if least > time or (len(stages) == 1 and not again[s] and least != time):
                yield f"a {name} of stage {s} takes {time}, and {least} at least"
    for s, row in enumerate(ways):
        times = min(pair[0].occupancy for pair in row), min(pair[0].latency for pair in row)
        users = Counter(name for m in range(count) for name in row[m % len(row)][0].resources)
        has = int(chain.send[s, layers[s].stop - 1]), int(chain.latency[s]), int(chain.link_counts(count)[s])
        if has[:2] != times or has[2] > max(users.values()):
            yield f"boundary {s} takes {has} at least, not {times} and {users}"
        if count % len(row) == 0 and has[2] != max(users.values()):
            yield f"boundary {s} is passed {has[2]} times, not {users}"


def tie_faults(
    asked: Question, chain: Chain, groups: Groups, layers: list[range], stages: list[Stage]
) -> Iterator[str]:
    """Sums of shared weights that take longer in tables than between the stages that have copies."""
    if chain.ends_tied != any((tied[0], tied[-1]) == (0, asked.n - 1) for tied, _ in asked.ties):
        yield f"the ends of {asked.ties} share weights: {chain.ends_tied}"
    for tied, size in asked.ties:
        members = [s for s, own in enumerate(layers) if set(tied) & set(own)]
        for weights in chain.shared if len(members) > 1 else ():
            if (weights.layers, weights.parameters) != (tied, size):
                continue
            joint = sum_of_copies(asked, groups, members, size)
            ties = [weights.as_tie(gathers) for gathers in (False, True)]
            waits = [int(other - one) for one, other in zip(*(tie.update for tie in ties), strict=True)]
            if waits != weights.gather.tolist():
                yield f"layers {tied} gather for {weights.gather}, and {waits}"
            for s in members:
                copied, home = (
                    weights.copied(layers[s].start, layers[s].stop),
                    weights.left(layers[s].start, layers[s].stop),
                )
                if (copied, home) != (s != members[0], s == members[0]):
                    yield f"layers {tied}: stage {s} is said to have a copy: {copied}, the home: {home}"
                if not 0 < weights.together[s] <= joint:
                    yield f"layers {tied} are summed in {joint}, and in {weights.together[s]} at least"
                least = weights.together[s] if copied else weights.home(weights.together)[s]
                if asked.level < 2 and least > stages[s].reduce:
                    yield f"stage {s} sums for {stages[s].reduce}, and {least} at least"


def stage_faults(pipeline: Pipeline, stages: list[Stage], ways: list[list[tuple[Way, Way]]]) -> Iterator[str]:
    """Figures of stages and transfers in which both differ."""
    for s, (own, stage) in enumerate(zip(pipeline.stages, stages, strict=True)):
        for name in FIGURES:
            if getattr(own, name) != getattr(stage, name):
                yield f"stage {s}: {name} is {getattr(stage, name)}, not {getattr(own, name)}"
        for rank in pipeline.placement[s]:
            if pipeline.runtime[rank] != stage.runtime:
                yield f"stage {s}: runtime is {stage.runtime}, not {pipeline.runtime[rank]}"
            if stage.limit is not None and pipeline.limits[rank] != stage.limit:
                yield f"stage {s}: limit is {stage.limit}, not {pipeline.limits[rank]}"
    for s, (row, out, back) in enumerate(zip(ways, pipeline.transfers, pipeline.returns, strict=True)):
        for pair, *both in zip(row, out, back, strict=True):
            for way, transfer in zip(pair, both, strict=True):
                if (way.occupancy, way.latency) != (transfer.occupancy, transfer.latency):
                    yield f"boundary {s}: {way}, not {transfer}"


def played(asked: Question, pipeline: Pipeline, stages: list[Stage], run: Any, random: Random) -> Iterator[str]:
    """Times and peaks in which both differ, under the lists of some family."""
    groups, count, ways, tied, level = run
    replicas = tuple(map(len, groups))
    name = random.choice([each for each in names((), asked.overlap, "step") if each != "fbp-as" or level < 2])
    family = random.choice(families((name,), replicas, count, "step"))
    lists = write(family, replicas, count, {s for group in tied for s in group})
    orders = tuple(tuple(Action(Kind(kind), s, m) for kind, s, m in order) for order in lists)
    schedule = Schedule(family.name, orders, family.lanes == 2)
    rest = pipeline.placement, stages, ways, asked.overlap, family.lanes, tied
    step = play.simulate(lists, *rest, together=level > 1)
    timeline = simulate(schedule, pipeline)
    has = timeline.makespan, makespan(schedule, pipeline), list(timeline.peaks)
    if has != (step.time, step.time, play.peaks(step, pipeline.placement, stages, len(lists))):
        yield f"{family}: a step of {step.time}, not {has}"
    ran = {(device, *action, step.start[i], step.end[i]) for i, (device, action) in enumerate(step.actions)}
    spans = {(each.device, str(each.action.kind), *each.action[1:3], each.start, each.end) for each in timeline.spans}
    if ran != spans:
        yield f"{family}: {ran - spans}, not {spans - ran}"
    path = timeline.critical
    waits = isinstance(path[0], Span) and path[0].action.kind is Kind.GATHER
    apart = waits and (path[0].device, path[0].end) != (path[1].device, path[1].start)
    if (path[0].start, path[-1].end) != (0, step.time) or len({*path}) != len(path) or apart:
        yield f"{family}: the critical path is {path}"
    if family.lanes == 1:
        turn = play.period(lists, *rest, together=level > 1)
        if turn != period(schedule, pipeline):
            yield f"{family}: a period of {turn}, not {period(schedule, pipeline)}"


def disputes(numbers: Iterable[int]) -> Iterator[str]:
    """What the planner and the referee count differently."""
    for number in numbers:
        random, document = Random(f"plans {number}"), document_of(number)
        parsed = objects(document)
        for asked, size, groups, layers, again in plans(document, random):
            chain, pipeline = priced(parsed, asked, size, groups, layers, again)
            prices, count = Prices(asked), asked.batch // size
            reduce = prices.reductions(groups, size, layers)
            stages = [prices.stage(groups, size, layers, s, again[s], reduce[s]) for s in range(len(groups))]
            ways, tied = prices.ways(groups, size, layers), prices.tied(groups, layers)
            faults = [*stage_faults(pipeline, stages, ways), *table_faults(chain, layers, again, stages, ways, count)]
            faults += tie_faults(asked, chain, groups, layers, stages)
            if {*map(frozenset, pipeline.tied)} != {*map(frozenset, tied)}:
                faults.append(f"tied are {tied}, not {pipeline.tied}")
            if not faults and "objective" not in asked.document["job"]:
                faults += played(asked, pipeline, stages, (groups, count, ways, tied, asked.level), random)
            yield from (f"question {number}, level {asked.level}, size {size}, {layers}: {fault}" for fault in faults)


@pytest.mark.parametrize("numbers", [[*part([*range(200), *chosen("plans")]), HOME], rarely(range(800))], ids=len)
def test_plans_are_priced_and_played_as_the_referee_does(numbers: Sequence[int]) -> None:
    """Every time and every byte of a plan, and the step, its peaks and its period, hold for any plan."""
    assert [*disputes(numbers)] == []
