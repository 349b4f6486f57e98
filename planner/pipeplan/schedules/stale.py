"""Lists through several batches without a flush, in which gradients are one step late.

::

    k = 2, 2 micro-batches a batch, level 0       F0 F1 B0 F2 B1 F3 B2 U0 F4 B3 F5 B4 U1 F6 …
                                                           └──── R0 ───┘       └─── R1 ──┘
    weights                                        0  0     1     1       2       2       3

Batch t runs with the weights W(max(t - 1, 0)), forward and backward on all stages, and its gradient is applied to W(t):

    W(t + 1) = W(t) - v grad f(W(max(t - 1, 0)))

Its sum R(t) runs beside the lists once its last backward has ended. U(t) stands right before the first forward of batch
t + 2. Replicas that share out the update gather what the others have updated in G(t), beside the lists, too; then U(t)
stands behind a forward in the middle between that backward and that forward. A replica holds no more micro-batches than
it has of a batch, so they are of two batches at most, and two versions of the weights are enough.

At depth 1 this is data parallelism whose sums are hidden behind the next batch; deeper it is PipeDream-2BW (Narayanan
et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021).
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind, Schedule

DELAYED = 2
"""Batches from the one that gives a gradient to the first one that runs with what it changed."""


def through_batches(schedule: Schedule, batches: int, gathers: Sequence[int] = ()) -> Schedule:
    """Return the lists of one batch, of a 1F1B family, written on through several batches without a flush.

    Micro-batches are counted on; reductions, updates and gathers have the number of their batch.

    Parameters
    ----------
    schedule : Schedule
        Replicas of a stage have equally many micro-batches.
    batches : int
        At least 1.
    gathers : sequence of int
        Stages whose replicas share out the update.

    Raises
    ------
    InputError
        If a list does not alternate.
    """
    many = schedule.micro_batches
    orders = (_written_on(order, many, batches, gathers) for order in schedule.orders)
    return replace(schedule, orders=tuple(orders))


def _written_on(order: Sequence[Action], many: int, batches: int, gathers: Sequence[int]) -> tuple[Action, ...]:
    """Return one replica's list."""
    own, stage = [action.micro_batch for action in order if action.kind is Kind.FORWARD], order[0].stage
    held = next((place for place, action in enumerate(order) if action.kind is not Kind.FORWARD), 0)
    kinds = [action.kind for action in order if action.kind.per_micro_batch]
    if kinds != _alternating(len(own), held) or any(action.stage != stage for action in order):
        raise InputError("only lists of 1F1B on one stage per device go on through several batches without a flush")
    sums = any(action.kind is Kind.REDUCE for action in order)
    # What stands behind each action, by its place: R behind the last backward of a batch, U and G in the window from
    # there to the first forward of the second batch behind it, or at the end.
    kinds = _alternating(len(own) * batches, held)
    window = 2 * (len(own) - held + 1)
    behind: dict[int, list[Action]] = {}
    for batch in range(batches):
        last = held + 2 * ((batch + 1) * len(own) - 1)  # its place if there are forwards behind it
        last = min(last, len(kinds) - (batches - batch - 1) * len(own) - 1)
        update = last + (window // 2 | 1 if stage in gathers else window)
        update = update if batch + DELAYED < batches else len(kinds) - 1
        behind.setdefault(last, []).extend([Action(Kind.REDUCE, stage, batch)] * sums)
        behind.setdefault(update, []).append(Action(Kind.UPDATE, stage, batch))
        behind[update] += [Action(Kind.GATHER, stage, batch)] * (stage in gathers)
    count = {Kind.FORWARD: 0, Kind.BACKWARD: 0}
    written: list[Action] = []
    for place, kind in enumerate(kinds):
        batch, number = divmod(count[kind], len(own))
        count[kind] += 1
        written += [Action(kind, stage, batch * many + own[number]), *behind.get(place, ())]
    return tuple(written)


def _alternating(many: int, held: int) -> list[Kind]:
    """Return the kinds of the forwards and backwards of a list with so many micro-batches, ``held`` in flight."""
    pairs = [Kind.BACKWARD, Kind.FORWARD] * max(many - held, 0)
    return [Kind.FORWARD] * held + pairs + [Kind.BACKWARD] * min(held, many)
