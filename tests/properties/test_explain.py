"""Explanations of random pipelines with replicas, split backwards and shared link resources."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.explained import setting_of
from helpers.random_schedules import random_case
from pipeplan.analysis.explain.path import portions
from pipeplan.analysis.explain.sensitivities import candidates, fall, groups, joint_set, sensitivities
from pipeplan.analysis.explain.setting import uses

seeds = st.integers(0, 2**32)


@given(seeds)
@settings(max_examples=200, deadline=None)
def test_the_critical_path_fills_the_step(seed: int) -> None:
    """Merged or not, the times of the path's portions are not negative and sum to the step time."""
    case = random_case(seed)
    setting = setting_of(case.schedule, case.pipeline)
    path = portions(setting)
    assert all(portion.time >= 0 and portion.count > 0 for portion in path)
    assert sum(portion.time for portion in path) == setting.step
    assert sum(portion.count for portion in path) == len(setting.timeline.critical)
    assert len({(portion.phase, portion.what, portion.where) for portion in path}) == len(path)


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_what_is_not_on_the_path_does_not_bind(seed: int) -> None:
    """With links of their own, whatever shortens the step alone is named, and nothing that does not."""
    case = random_case(seed, shared_resources=False)
    assume(not case.schedule.two_lanes)  # whose split backwards are rounded to whole nanoseconds
    setting = setting_of(case.schedule, case.pipeline)
    named = {
        (sensitivity.kind, sensitivity.name, sensitivity.stages): sensitivity.fall
        for sensitivity in sensitivities(setting)
    }
    for sensitivity in candidates(setting):
        alone = fall(setting, [sensitivity])
        assert named.get((sensitivity.kind, sensitivity.name, sensitivity.stages), 0.0) == max(alone, 0.0)


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_like_things_together_do_no_less_than_one_of_them(seed: int) -> None:
    """With links of their own, a group shortens the step at least as much as any of its members."""
    case = random_case(seed, shared_resources=False)
    assume(not case.schedule.two_lanes)
    setting = setting_of(case.schedule, case.pipeline)
    found = groups(setting)
    for sensitivity in sensitivities(setting):
        parts = {*sensitivity.stages, *sensitivity.link_resources}
        holders = [g for g in found if g.kind == sensitivity.kind and parts <= {*g.stages, *g.link_resources}]
        assert all(group.fall >= sensitivity.fall for group in holders)
        assert holders or sum(other.kind == sensitivity.kind for other in candidates(setting)) == 1


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_what_binds_together_binds_with_no_part_left_out(seed: int) -> None:
    """The set shortens the step; without any one of its members it does not; it is empty only if all are not enough."""
    case = random_case(seed)
    setting = setting_of(case.schedule, case.pipeline)
    joint = joint_set(setting)
    assert bool(joint) == (fall(setting, list(candidates(setting))) > 0)
    if joint:
        assert fall(setting, joint) == joint[0].fall > 0
    for left_out in joint if len(joint) > 1 else ():
        assert fall(setting, [sensitivity for sensitivity in joint if sensitivity != left_out]) <= 0


@given(seeds)
@settings(max_examples=200, deadline=None)
def test_nothing_is_busy_for_longer_than_the_step(seed: int) -> None:
    """Of every device and link the busy time is what its actions and transfers take, within the step."""
    case = random_case(seed)
    setting = setting_of(case.schedule, case.pipeline)
    taken: dict[str, int] = {}
    for flight in setting.timeline.transfers:
        for name in setting.transfer(flight).resources:
            taken[name] = taken.get(name, 0) + setting.transfer(flight).occupancy
    for use in uses(setting):
        assert 0 <= use.busy <= setting.step
        if use.kind != "device":
            assert use.busy == taken.pop(use.name)
    assert not any(taken.values())
