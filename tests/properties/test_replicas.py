"""Families and free in-flight counts with replicas: complete, within their memory, free of deadlock as stated."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.naive_timing import lists_and_needs, longest_paths, with_resources
from helpers.random_schedules import random_pipeline, stage_by_stage
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.validate import validate_memory, validate_schedule
from pipeplan.schedules import FAMILIES, first_deadlock, one_forward_one_backward
from pipeplan.simulate import simulate

widths = st.lists(st.integers(1, 4), min_size=1, max_size=4)
equal_widths = st.builds(lambda width, depth: [width] * depth, st.integers(2, 3), st.integers(1, 4))


@given(widths | equal_widths, st.integers(1, 12), st.sampled_from(sorted(FAMILIES)), st.integers(0, 2**32))
@settings(max_examples=600, deadline=None)
def test_families_equal_the_oracle(replicas: list[int], micro_batches: int, name: str, seed: int) -> None:
    """Every family's lists are complete, hold no more than it states, and take the time of the oracle."""
    random, family = Random(seed), FAMILIES[name]
    placement = stage_by_stage(replicas)
    schedule = family.write(replicas, micro_batches)
    validate_schedule(schedule, len(replicas), micro_batches, placement)
    pipeline = random_pipeline(random, placement, sum(replicas), 0, random.random() < 0.7, 1)
    pipeline = replace(pipeline, coupled=len(set(replicas)) == 1 and random.random() < 0.8)
    timeline = simulate(schedule, pipeline)
    oracle = longest_paths(with_resources(lists_and_needs(schedule, pipeline), schedule, pipeline, timeline))
    assert timeline.makespan == max(time for (_, name), time in oracle.items() if name == "end")
    reduced = {action.stage for action in schedule.actions() if action.kind is Kind.REDUCE}
    assert reduced == {stage for stage, count in enumerate(replicas) if count > 1}
    counts = family.in_flight(replicas, micro_batches)
    for stage, homes in enumerate(placement):
        assert max(most_held(schedule.orders[device], stage) for device in homes) <= counts[stage]
    assert all(a >= b for a, b in zip(validate_memory(schedule, pipeline), timeline.peaks, strict=True))


def most_held(order: Sequence[Action], stage: int) -> int:
    """The most forwards of a stage that precede their backwards at any place of a list."""
    change = {Kind.FORWARD: 1, Kind.BACKWARD: -1}
    return max(accumulate((change.get(a.kind, 0) for a in order if a.stage == stage), initial=0))


@given(widths, st.data())
@settings(max_examples=600, deadline=None)
def test_a_vector_is_refused_where_it_would_deadlock(replicas: list[int], data: st.DataObject) -> None:
    """Accepted vectors have no deadlock; refused ones have one as soon as there are k_s r_s + r_t micro-batches."""
    in_flight = [data.draw(st.integers(1, 6)) for _ in replicas]
    micro_batches = data.draw(st.integers(1, 40))
    placement = stage_by_stage(replicas)
    shares = [-(-micro_batches // r) for r in replicas]
    pair = first_deadlock(replicas, [min(k, most) for k, most in zip(in_flight, shares, strict=True)])
    if pair is None:
        schedule = one_forward_one_backward(replicas, micro_batches, in_flight)
        validate_schedule(schedule, len(replicas), micro_batches, placement)
        simulate(schedule, random_pipeline(Random(0), placement, sum(replicas), 0, False))
        for stage, homes in enumerate(placement):
            assert all(most_held(schedule.orders[d], stage) <= in_flight[stage] for d in homes)
        return
    with pytest.raises(InputError, match=f"stage {pair[1]}"):
        one_forward_one_backward(replicas, micro_batches, in_flight)
    s, t = pair
    if micro_batches >= in_flight[s] * replicas[s] + replicas[t]:
        forced = by_hand(replicas, micro_batches, in_flight)
        with pytest.raises(PlanError, match="waits at"):
            simulate(forced, random_pipeline(Random(0), placement, sum(replicas), 0, False))
        with pytest.raises(PlanError, match="waits at"):
            validate_schedule(forced, len(replicas), micro_batches, placement)


def by_hand(replicas: Sequence[int], micro_batches: int, in_flight: Sequence[int]) -> Schedule:
    """1F1B lists as in the picture, with or without deadlock."""
    orders = []
    for s, r in enumerate(replicas):
        for j in range(r):
            own = list(range(j, micro_batches, r))
            order = [Action(Kind.FORWARD, s, m) for m in own[: in_flight[s]]]
            ahead = own[in_flight[s] :]
            for m in own:
                order.append(Action(Kind.BACKWARD, s, m))
                order += [Action(Kind.FORWARD, s, ahead.pop(0))] if ahead else []
            orders.append((*order, *([Action(Kind.REDUCE, s)] if r > 1 else []), Action(Kind.UPDATE, s)))
    return Schedule("by hand", tuple(orders))


@given(widths, st.integers(1, 16))
@settings(max_examples=200, deadline=None)
def test_every_family_keeps_the_rule(replicas: list[int], micro_batches: int) -> None:
    """The counts of all 1F1B families are deadlock-free, and 1F1B with those counts is their list."""
    for name in ("1f1b-sno", "1f1b-so", "1f1b-as", "fbp-as"):
        counts = FAMILIES[name].in_flight(replicas, micro_batches)
        assert first_deadlock(replicas, counts) is None
        free = one_forward_one_backward(replicas, micro_batches, counts)
        assert free.orders == FAMILIES[name].write(replicas, micro_batches).orders


def test_checks_of_neighbours_do_not_suffice() -> None:
    """With replicas, a vector that every pair of neighbours allows may deadlock over a stage between them."""
    replicas, in_flight = (1, 3, 1), (4, 2, 6)
    assert first_deadlock(replicas[:2], in_flight[:2]) is None
    assert first_deadlock(replicas[1:], in_flight[1:]) is None
    assert first_deadlock(replicas, in_flight) == (0, 2)
    pipeline = random_pipeline(Random(0), stage_by_stage(replicas), 5, 0, False)
    with pytest.raises(PlanError, match="device 0 waits at 0B0"):
        simulate(by_hand(replicas, 40, in_flight), pipeline)


def test_one_stage_of_many_replicas_is_data_parallelism() -> None:
    """Equal replicas run their shares in parallel, reduce once, and update."""
    placement = stage_by_stage((4,))
    pipeline = random_pipeline(Random(1), placement, 4, 1, False)
    stage = pipeline.stages[0]
    timeline = simulate(FAMILIES["1f1b-sno"].write((4,), 8), pipeline)
    assert timeline.makespan == 2 * (stage.forward + stage.backward) + stage.reduce + stage.update
    assert pipeline.overlap in Overlap and not timeline.transfers
