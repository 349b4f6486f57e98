"""Sends, receives and settles around the actions of random schedules, checked by playing them."""

import random
from collections import defaultdict, deque

import pytest

from helpers.runnable_schedules import random_schedule
from pipeplan.core.schedule import Action
from pipeplan.schedules import FAMILIES
from pipeplan_executor.runtime.program.lower import Message, Receive, Send, Settle, Step, lower


def play(steps: tuple[tuple[Step, ...], ...]) -> None:
    """Run all ranks' lists with networks that keep order and no tags; a receive takes whatever comes next.

    A rank goes on until it needs a tensor that is not there. Raises AssertionError if a rank is stuck, reads another
    tensor than it needs, or lets go of one that may still be on its way.
    """
    sent: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
    expected: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
    position = [0] * len(steps)
    ran: set[Action] = set()

    def arrived(action: Action, rank: int) -> bool:
        for (source, target), posted in expected.items():
            for place, message in enumerate(posted):
                if target == rank and message.reads == action:
                    if len(sent[source, target]) <= place:
                        return False
                    assert sent[source, target][place] == message, "another tensor than was expected"
        return True

    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(steps):
            while position[rank] < len(own):
                step = own[position[rank]]
                if isinstance(step, Send):
                    assert step.message.made in ran
                    sent[step.message.source, step.message.target].append(step.message)
                elif isinstance(step, Receive):
                    expected[step.message.source, step.message.target].append(step.message)
                elif isinstance(step, Settle):
                    rest = [later for later in own[position[rank] :] if not isinstance(later, Settle)]
                    assert step.message.reads in ran or not rest, f"{step} may have to wait"
                elif step.kind.per_micro_batch:
                    if not arrived(step, rank):
                        break
                    ran.add(step)
                position[rank] += 1
                moved = True
    stuck = [own[p] for own, p in zip(steps, position, strict=True) if p < len(own)]
    assert not stuck, stuck


@pytest.mark.parametrize("seed", range(200))
def test_lists_can_be_played(seed: int) -> None:
    """However early receives are posted, they match their messages; there is no deadlock, no settle waits midway."""
    schedule = random_schedule(seed)
    sizes = random.Random(seed)
    steps = lower(schedule, lambda _: sizes.random() < 0.5)
    play(steps)
    for rank, (own, order) in enumerate(zip(steps, schedule.orders, strict=True)):
        assert tuple(step for step in own if isinstance(step, Action)) == order
        sent = {step.message: place for place, step in enumerate(own) if isinstance(step, Send)}
        settled = {step.message: place for place, step in enumerate(own) if isinstance(step, Settle)}
        assert sent.keys() == settled.keys()
        assert all(sent[m] < settled[m] and m.source == rank for m in sent)


def test_the_picture() -> None:
    """Two stages, two micro-batches: where every step stands."""
    schedule = FAMILIES["1f1b-sno"].write((1, 1), 2)
    words = {Send: "send", Receive: "receive", Settle: "settle"}
    first, second = (
        " ".join(str(s) if isinstance(s, Action) else f"{words[type(s)]}:{s.message.made}" for s in own)
        for own in lower(schedule, lambda _: False)
    )
    assert first == "0F0 send:0F0 receive:1B0 0F1 send:0F1 receive:1B1 0B0 settle:0F0 0B1 settle:0F1 0U"
    assert second.startswith("receive:0F0 1F0")
    assert second.endswith("1U settle:1B0 settle:1B1")


def test_small_messages_are_expected_where_a_rank_waits() -> None:
    """Receives are posted one arrival ahead, not between an action and the next one whose input is there."""
    schedule = FAMILIES["1f1b-sno"].write((1, 1), 3)
    steps = lower(schedule, lambda _: True)
    for own in steps:
        actions = [step for step in own if isinstance(step, Action)]
        readers = [step.message.reads for step in own if isinstance(step, Receive)]
        for step in own:
            if isinstance(step, Receive):
                behind = next(each for each in own[own.index(step) :] if isinstance(each, Action))
                arrivals = readers[: readers.index(step.message.reads)]
                assert behind == (arrivals[-1] if arrivals else step.message.reads)
                assert actions.index(behind) <= actions.index(step.message.reads)
