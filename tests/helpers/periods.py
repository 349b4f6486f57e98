"""Steps one after another in one long simulation: an oracle of periods that knows nothing of states."""

from dataclasses import replace
from fractions import Fraction
from math import ceil

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.simulate import makespan
from pipeplan.simulate.program import Program, build_program
from pipeplan.simulate.run import run
from pipeplan.simulate.structure import NOTHING


def ends_of_steps(schedule: Schedule, pipeline: Pipeline, steps: int) -> list[tuple[int, ...]]:
    """For each of many steps, when each device that does something ends it. Steps only follow one another in lists.

    A device ends a step when it has gathered its parameters for the next one.
    """
    one = build_program(schedule, pipeline, share=True)
    longer = one.durations.copy()
    for device in set(one.homes):  # its last action is an update, for which nothing else waits
        longer[max(i for i, home in enumerate(one.homes) if home == device)] += one.begins[device]
    one = replace(one, durations=longer, begins=(0,) * pipeline.devices)
    many, place = _repeated(one, steps)
    trace = run(many)
    devices = sorted(set(one.homes))
    last = [max(i for i, home in enumerate(one.homes) if home == device) for device in devices]
    assert min(trace.starts) >= 0
    return [tuple(trace.signals[place(i, k)] for i in last) for k in range(steps)]


def average(ends: list[tuple[int, ...]]) -> Fraction | None:
    """The average time from step to step, if what all devices gain in some last steps is equal; else None."""
    for steps in range(1, len(ends) // 2):
        gains = {after - before for before, after in zip(ends[-1 - steps], ends[-1], strict=True)}
        if len(gains) == 1:
            return Fraction(gains.pop(), steps)
    return None


def _repeated(one: Program, steps: int):
    """The program with each list so often one after another; the new number of action i of step k."""
    n = len(one.actions)
    size = [one.homes.count(device) for device in range(len(one.lanes) // 2)]
    first = [sum(size[:device]) for device in range(len(size))]

    def place(i: int, k: int) -> int:
        device = one.homes[i]
        return steps * first[device] + k * size[device] + i - first[device]

    def signal(number: int, k: int) -> int:
        return place(number, k) if number < n else steps * n + place(number - n, k)

    needs = [()] * (steps * n)
    rows = {name: [None] * (steps * n) for name in ("actions", "homes", "channel_of", "durations", "collective_of")}
    for k in range(steps):
        for i in range(n):
            wanted = [signal(each, k) for each in one.needs[i]]
            if one.two_lanes and k and one.actions[i].kind is Kind.FORWARD:  # it reads the updated weights
                behind = first[one.homes[i]] + size[one.homes[i]] - 1
                others = [j for j in one.needs[i] if j < n and one.homes[j] == one.homes[i]]
                wanted += [] if any(one.actions[j].kind is not Kind.FORWARD for j in others) else [place(behind, k - 1)]
            needs[place(i, k)] = tuple(wanted)
            for name, row in rows.items():
                row[place(i, k)] = getattr(one, name)[i]
            if one.collective_of[i] != NOTHING:
                rows["collective_of"][place(i, k)] += k * len(one.collectives)
    lanes = [[place(i, k) for k in range(steps) for i in lane] for lane in one.lanes]
    collectives = [[place(i, k) for i in row] for k in range(steps) for row in one.collectives]
    return replace(one, needs=needs, lanes=lanes, collectives=collectives, place=[], **rows), place


def period_of(schedule: Schedule, pipeline: Pipeline, steps: int) -> int | None:
    """The average of many steps, rounded up as `pipeplan.simulate.period` does it, and at most a step."""
    found = average(ends_of_steps(schedule, pipeline, steps))
    return None if found is None else min(ceil(found), makespan(schedule, pipeline))
