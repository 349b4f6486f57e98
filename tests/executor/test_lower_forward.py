"""Passes without backwards, checked by playing them."""

import random
from collections import defaultdict, deque

import pytest

from helpers.runnable_schedules import random_schedule
from pipeplan.core.schedule import Action, Kind
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan_executor.runtime.program.lower import Message, Receive, Send, Settle, Step, lower_forward


def play(steps: tuple[tuple[Step, ...], ...]) -> int:
    """Play all ranks' lists, with settles that wait for the receive; return the most unsettled messages of a rank.

    Raises AssertionError if a rank is stuck or takes another message than it expects.
    """
    sent: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
    expected: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
    posted: set[Message] = set()
    arrived: set[Action] = set()
    ran: set[Action] = set()
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
