"""Sums of gradients of several stages on the same ranks: turns by hand and by replay, and what plans may claim."""

import random
from dataclasses import replace

import pytest

import pipeplan
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Bucket, Stage, exposed
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan.costs.in_turn import summed_in_turn
from pipeplan.schedules import PLACED
from pipeplan.simulate.claims import validate_claims


def stage(backward: int, *buckets: Bucket) -> Stage:
    """A stage whose sums are hidden by its own last backward alone."""
    return Stage(1, backward, reduce=exposed(buckets), buckets=buckets)


def random_stages(generator: random.Random, count: int) -> tuple[Stage, ...]:
    """Stages with up to three buckets of layers, some without any, some with sums behind all others."""
    found = []
    for _ in range(count):
        backward = generator.randint(0, 20)
        ready = sorted((generator.randint(0, backward) for _ in range(generator.randint(0, 3))), reverse=True)
        buckets = [Bucket(1, each, generator.randint(0, 15)) for each in ready]
        behind = [Bucket(0, 0, generator.randint(1, 9))] if buckets and generator.random() < 0.3 else []
        found.append(stage(backward, *buckets, *behind))
    return tuple(found)


def test_sums_of_a_later_stage_are_hidden_by_an_earlier_one() -> None:
    """Stage 1 has two sums of 4 and 3, ready 6 and 0 before its end; stage 0 works 10 more, and has one of 5."""
    stages = stage(10, Bucket(2, 2, 5)), stage(8, Bucket(1, 6, 4), Bucket(1, 0, 3))
    first, last = summed_in_turn(stages, ((0, 1), (0, 1)), (10, 8))
    assert (last.reduce, last.buckets) == (0, (Bucket(1, 16, 4), Bucket(1, 10, 3)))
    assert (first.reduce, first.buckets) == (3, (Bucket(2, 2, 5),))
    first, last = summed_in_turn((stages[0], stage(8, Bucket(1, 6, 17))), ((0, 1), (0, 1)), (10, 8))
    assert (last.reduce, last.buckets) == (1, (Bucket(1, 16, 17),))
    assert (first.reduce, first.buckets) == (5, (Bucket(0, 3, 3), Bucket(2, 3, 5)))  # they wait until 1 ns behind


@pytest.mark.parametrize("seed", range(40))
def test_turns_are_those_of_a_replay(seed: int) -> None:
    """One sum at a time, each once its layers' backward is over: the ranks wait as long, stage by stage."""
    generator = random.Random(seed)
    stages, placement = random_stages(generator, 3), ((0, 1),) * 3
    backwards = [each.duration(Kind.BACKWARD) for each in stages]
    found = summed_in_turn(stages, placement, backwards)
    now = end = -sum(each.duration(Kind.BACKWARD) for each in stages)
    waited = 0
    for own, turn in zip(reversed(stages), reversed(found), strict=True):
        now += own.duration(Kind.BACKWARD)
        for bucket in (each for each in own.buckets if each.layers):
            end = max(end, now - bucket.ready) + bucket.time
        if own.buckets:
            behind = sum(each.time for each in own.buckets if not each.layers)  # whatever else is hidden
            assert turn.reduce == exposed(turn.buckets) == max(end - waited, 0) + behind
            waited = max(waited, end)
    apart = ((0, 1), (2, 3), (4, 5))
    assert summed_in_turn(stages, apart, backwards) == stages


@pytest.mark.parametrize("name", [name for name, family in PLACED.items() if family.homes.__name__ != "both_ways"])
def test_last_backwards_end_in_the_order_of_turns(name: str) -> None:
    """On every rank of any copy the last backward of a later stage is over before that of an earlier one."""
    family = PLACED[name]
    for devices, micro_batches, copies in [(d, m, c) for d in range(1, 7) for c in (1, 2, 3) for m in range(c, 14)]:
        for chunks in (family.chunks,) if family.chunks else (1, 2, 3):
            for order in family.write(devices, micro_batches, chunks, copies).orders:
                backwards = [a.stage for a in order if a.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT)]
                last = list(dict.fromkeys(reversed(backwards)))
                assert last == sorted(last)


@pytest.fixture(scope="module")
def interleaved() -> Plan:
    """Two copies of two devices with two stages each, whose sums take turns."""
    asked = {"batch": 16, "chunks": 2, "teams": 1, "depths": 4, "replicas": 2, "micro_batches": 4}
    return pipeplan.solve("vgg-16", "4-v100-nvlink", schedules="interleaved", recompute="none", **asked).plan


def test_a_plan_claims_what_turns_hide(interleaved: Plan) -> None:
    """Sums beside the backwards of lower stages are right; what is ready before its own stage's backward is not."""
    validate_claims(interleaved)
    stages, placement = interleaved.pipeline.stages, interleaved.pipeline.placement
    hidden = [number for number, own in enumerate(stages) if own.buckets]
    assert any(own.buckets[0].ready > own.duration(Kind.BACKWARD) for own in stages if own.buckets)
    for number in hidden:
        own = stages[number]
        same = [n for n, ranks in enumerate(placement) if ranks == placement[number]]
        most = sum(stages[n].duration(Kind.BACKWARD) for n in same if n <= number)
        early = most + sum(stages[n].reduce for n in same if n > number) - own.buckets[0].ready + 1
        earlier = tuple(replace(each, ready=each.ready + early) for each in own.buckets)
        for changed in (
            replace(own, buckets=earlier, reduce=exposed(earlier)),
            replace(own, reduce=own.reduce + 1),
        ):
            with pytest.raises(PlanError, match=f"sums of stage {number} "):
                validate_claims(with_stage(interleaved, number, changed))


def with_stage(plan: Plan, number: int, changed: Stage) -> Plan:
    """The plan with other times of one stage."""
    stages = [changed if n == number else own for n, own in enumerate(plan.pipeline.stages)]
    return replace(plan, pipeline=replace(plan.pipeline, stages=tuple(stages)))
