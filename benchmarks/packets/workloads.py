"""Messages of an incast, of collectives, and of the sums of gradients in a plan."""

import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.packets.simulator import Message

from pipeplan.core.model import Model
from pipeplan.core.plan import Plan


def incast(hosts: int, servers: int, size: int, seed: int) -> list[Message]:
    """All other hosts send ``size`` bytes to each of some servers, and begin within 10 microseconds."""
    draw = random.Random(seed)
    chosen = draw.sample(range(hosts), servers)
    pairs = [(worker, server) for server in chosen for worker in range(hosts) if worker not in chosen]
    return [Message(a, b, size, ready=draw.randrange(10_000), gradients=True) for a, b in pairs]


def permutation(hosts: int, size: int, seed: int) -> list[Message]:
    """Every host sends ``size`` bytes to the next one of a circle in random order."""
    order = random.Random(seed).sample(range(hosts), hosts)
    return [Message(a, b, size, gradients=True) for a, b in zip(order, order[1:] + order[:1], strict=True)]


def halves(messages: Sequence[Message]) -> list[Message]:
    """Send half of each message, its small gradients, in the second class; only these may be lost."""
    half = [replace(message, size=message.size // 2) for message in messages]
    return [replace(m, gradients=False) for m in half] + [replace(m, priority=1) for m in half]


def exchange(workers: Sequence[int], owners: Sequence[int], like: Message, first: int) -> list[Message]:
    """Each worker sends each owner its share, and each owner sends all workers the sum: a parameter server.

    With workers as owners this is a direct sum. The messages are ``like`` one of all bytes, numbered from ``first`` on.
    """
    pairs = [(worker, owner) for owner in owners for worker in workers if worker != owner]
    like = replace(like, size=-(-like.size // len(owners)))
    heard = {owner: tuple(first + i for i, pair in enumerate(pairs) if pair[1] == owner) for owner in owners}
    adding = [replace(like, source=a, target=b, gradients=True) for a, b in pairs]
    return adding + [replace(like, source=b, target=a, after=heard[b]) for a, b in pairs]


def ring(ranks: Sequence[int], like: Message, first: int) -> list[Message]:
    """2 (r − 1) rounds, of which the first half adds: a rank passes on what it got in the round before."""
    count, messages = len(ranks), []
    like = replace(like, size=-(-like.size // count))
    for turn in range(2 * (count - 1)):
        for i, rank in enumerate(ranks):
            after = (first + (turn - 1) * count + (i - 1) % count,) if turn else ()
            target, adds = ranks[(i + 1) % count], turn < count - 1
            messages.append(replace(like, source=rank, target=target, after=after, gradients=adds))
    return messages


def sums_of(plan: Plan, model: Model, classes: int) -> list[tuple[Message, int]]:
    """Return for each unit that a plan with one stage sums a message like its own, and when its sum is needed.

    Times are nanoseconds from the begin of the last backward. Units that are needed first are of the first class.
    """
    (stage,), (priority,) = plan.stages, plan.priority
    sizes = {layer.name: layer.parameters for layer in model.layers}
    sends, layers, sums = {send.layer: send for send in priority.sends}, list(stage.layers), []
    units = priority.units(stage.layers)
    for number, count in enumerate(units):
        names = [layers.pop() for _ in range(count)]
        (send,) = (sends[name] for name in names if name in sends)
        level = (len(units) - 1 - number) * classes // len(units)
        like = Message(0, 0, sum(sizes[name] for name in names), level, stage.backward - send.ready)
        sums.append((like, stage.backward + send.needed))
    return sums
