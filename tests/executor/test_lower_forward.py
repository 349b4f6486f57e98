"""Passes without backwards, checked by playing them."""

import random
from collections import defaultdict, deque
from collections.abc import Mapping, Set
from math import lcm

import pytest

from helpers.runnable_schedules import random_replicas, random_schedule
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan_executor.runtime.program.lower import Message, Receive, Send, Settle, Step, lower_forward


def play(steps: tuple[tuple[Step, ...], ...], passes: Mapping[Action, Set[Action]] | None = None) -> int:
    """Play all ranks' lists, with settles that wait for the receive; return the most unsettled messages of a rank.

    ``passes``: for each forward those that begin together, if any do. Raises AssertionError if a rank is stuck or takes
    another message than it expects.
    """
    sent: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
    expected: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
    posted: set[Message] = set()
    arrived: set[Action] = set()
    ran: set[Action] = set()
    ready: set[Action] = set()
    position, unsettled, most, moved = [0] * len(steps), [0] * len(steps), 0, True
    while moved:
        moved = False
        for rank, own in enumerate(steps):
            while position[rank] < len(own):
                step = own[position[rank]]
                if isinstance(step, Send):
                    assert step.message.made in ran
                    sent[between(step)].append(step.message)
                    unsettled[rank] += 1
                    most = max(most, unsettled[rank])
                elif isinstance(step, Receive):
                    posted.add(step.message)
                    expected[between(step)].append(step.message)
                elif isinstance(step, Settle):
                    if step.message not in posted:
                        break
                    unsettled[rank] -= 1
                elif step.stage and step not in arrived | local(step, ran, own):
                    for pair, messages in sent.items():
                        if pair[1] == rank and messages and expected[pair]:
                            message = messages.popleft()
                            assert message == expected[pair].popleft()
                            arrived.add(message.reads)
                            moved = True
                    if step not in arrived:
                        break
                    continue
                else:
                    moved |= step not in ready
                    ready.add(step)
                    if passes is not None and not passes[step] <= ready:
                        break
                    ran.add(step)
                position[rank] += 1
                moved = True
    stuck = [own[at] for own, at in zip(steps, position, strict=True) if at < len(own)]
    assert not stuck, stuck
    assert not any(unsettled)
    return most


def between(step: Send | Receive) -> tuple[int, int]:
    """The ranks that a message goes from and to."""
    return step.message.source, step.message.target


def local(step: Action, ran: set[Action], own: tuple[Step, ...]) -> set[Action]:
    """The action itself, if this rank ran the one before it."""
    ahead = step._replace(stage=step.stage - 1)
    return {step} if ahead in ran and ahead in own else set()


@pytest.mark.parametrize("seed", range(100))
def test_forward_passes_can_be_played(seed: int) -> None:
    """Every forward runs once, on the rank that runs it in training, in the order of training; there is no deadlock."""
    schedule = random_schedule(seed)
    sizes = random.Random(seed)
    steps = lower_forward(schedule, lambda _: sizes.random() < 0.5)
    play(steps)
    for own, order in zip(steps, schedule.orders, strict=True):
        forwards = tuple(action for action in order if action.kind is Kind.FORWARD)
        assert tuple(step for step in own if isinstance(step, Action)) == forwards


def random_passes(seed: int) -> Schedule:
    """Random order of passes that the replicas of a stage begin together, without deadlock."""
    generator = random.Random(seed)
    replicas = random_replicas(generator, generator.randint(2, 8))
    micro_batches, last = lcm(*replicas) * generator.randint(1, 4), len(replicas) - 1
    done: set[Action] = set()
    todo = {
        tuple(Action(kind, stage, first + replica) for replica in range(wide))
        for stage, wide in enumerate(replicas)
        for first in range(0, micro_batches, wide)
        for kind in (Kind.FORWARD, Kind.BACKWARD)
    }

    def can_run(action: Action) -> bool:
        kind, stage = action.kind, action.stage
        if kind is Kind.FORWARD:
            return not stage or action._replace(stage=stage - 1) in done
        behind = action._replace(kind=Kind.FORWARD) if stage == last else action._replace(stage=stage + 1)
        return behind in done and action._replace(kind=Kind.FORWARD) in done

    orders: list[list[list[Action]]] = [[[] for _ in range(wide)] for wide in replicas]
    while todo:
        chosen = generator.choice(sorted(each for each in todo if all(map(can_run, each))))
        todo.remove(chosen)
        done.update(chosen)
        for action, order in zip(chosen, orders[chosen[0].stage], strict=True):
            order.append(action)
    return Schedule("random", tuple(tuple(order) for stage in orders for order in stage))


@pytest.mark.parametrize("seed", range(200))
def test_forward_passes_in_shards_can_be_played(seed: int) -> None:
    """There is no deadlock either where the replicas of a stage begin every forward together."""
    schedule = random_passes(seed)
    sizes = random.Random(seed)
    steps = lower_forward(schedule, lambda _: sizes.random() < 0.5, sharded=True)
    forwards = [[step for step in own if isinstance(step, Action)] for own in steps]
    rows = [row for ranks in schedule.homes for row in zip(*(forwards[rank] for rank in ranks), strict=True)]
    play(steps, {action: {*row} for row in rows for action in row})


@pytest.mark.parametrize("micro_batches", [1, 4, 40])
@pytest.mark.parametrize("world", [2, 4])
def test_what_was_sent_is_let_go_of(micro_batches: int, world: int) -> None:
    """A rank holds at most four of its messages, for any number of micro-batches.

    Ranks that run all micro-batches of one stage before the first one of their next stage are excepted.
    """
    schedules = [family.write((1,) * world, micro_batches) for family in FAMILIES.values()]
    schedules += [family.write(world, micro_batches, family.chunks or 2) for family in PLACED.values()]
    for schedule in schedules:
        steps = lower_forward(schedule, lambda _: False)
        assert play(steps) <= max(4, micro_batches if schedule.family == "looped-bfs" else 0), schedule.family
