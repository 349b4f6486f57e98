"""Families of token slices: 1F1B over slices, TeraPipe (Li et al., ICML 2021), and ZB-H1 over slices.

::

    time         0  1  2  3  4  5  6  7  8  9 10 11     3 stages, 1 micro-batch in 4 slices, F = B = 1
    device 0    F0 F1 F2 F3  .  . B3  . B2 B1 B0  .     1f1b-slices; the number is that of the slice
    device 1     . F0 F1 F2 F3 B3  .  B2 B1 B0 ..       (see `_counts` for what is held)
    device 2     .  . F0 F1 F2 F3 B3 B2 B1 B0 ..

A unit is one slice of one micro-batch. Forwards run micro-batch by micro-batch and slice by slice; backwards take a
micro-batch's slices in reverse, since the gradients of a slice's keys are complete only when all later slices have
added theirs. Stages have equally many replicas, and replica j of r runs micro-batches j, j + r, … with all their
slices, so replicas are pipelines of their own. `1f1b-slices` is 1F1B in units: a stage that is p − s from the end (of p
stages, the last one 1 from it) holds p − s + S − 1 of them: one for each device behind it, and S − 1 more because the
last slice returns first.

*No deadlock.* Number a replica's units by u = i S + k (its i-th micro-batch, slice k), and its backwards by x = i S +
(S − 1 − k). With K_s in flight F(u) follows the backward u − K_s, and the backward x follows F(x + K_s − 1), or the
last one. Let F(u) on stage s happen at 2 u + ε s, and the backward x at 2 (x + K_s) − 1 − ε s, for a small ε > 0. Each
list is in this order. F(u) is later on the next stage. A backward is later on the stage before, whose K is larger by
one, or equal where all units are held. On the last stage F(i S + k) precedes its backward, as 2 k < 2 (S − 1 − k + K) −
1 for k ≤ S − 1 and K ≥ S. So no wait is circular.

*Split backwards.* `zb-h1-slices` has the forwards of `1f1b-slices`, and an input gradient I for each of its backwards.
A weight gradient follows the I that is s units later, so all stages hold p + S − 1 units. It waits for its own I alone,
so the lists do not deadlock either::

    time         0  1  2  3  4  5  6  7  8  9 10 11 12     3 stages, 1 micro-batch in 3 slices, F = I = W = 1;
    device 0    F0 F1 F2  .  .  .  . I2 W2 I1 W1 I0 W0     1f1b-slices takes 15
    device 1     . F0 F1 F2  .  . I2 I1 W2 I0 W1 W0  .
    device 2     .  . F0 F1 F2 I2 I1 I0 W2 W1 W0  .  .
"""

from collections.abc import Sequence
from functools import partial

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules.family import Family, check_size, closing, largest_share, shares

JOINED = {
    "1f1b-slices": "one forward, one backward of token slices; p - s + S - 1 slices in flight at stage s of p",
    "terapipe": "all forwards of token slices, then all backwards; holds every slice",
}
SPLIT = {
    "zb-h1-slices": "1f1b-slices with weight gradients in the bubble; every stage holds p + S - 1 slices",
}
SLICED = JOINED | SPLIT
"""Names of the families, and one line on each; those of `SPLIT` have split backwards, and are searched where named."""


def sliced_families(count: int) -> tuple[Family, ...]:
    """Return the families for ``count`` slices per micro-batch; what they hold are slices."""
    return tuple(
        Family(
            name,
            partial(_write, name, count),
            partial(_counts, name, count),
            frozenset(Overlap),
            summary,
            splits=name in SPLIT,
        )
        for name, summary in SLICED.items()
    )


def asked_sliced_families(count: int, named: Sequence[str]) -> tuple[Family, ...]:
    """Return those of these families that are named, or if no family is those with joined backwards.

    Raises
    ------
    InputError
        If others are named alone.
    """
    found = tuple(each for each in sliced_families(count) if each.name in (named or JOINED))
    if not found:
        raise InputError(
            f"schedules {', '.join(named)} run whole sequences, and {count} token slices (slices) run "
            f"{' or '.join(SLICED)}; name one of these too, or drop one or the other"
        )
    return found


def _warm_up(name: str, count: int, replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Return the most forwards of a replica of each stage before its first backward, in slices."""
    check_size(replicas, micro_batches)
    stages = len(replicas)
    wanted = [micro_batches * count if name == "terapipe" else stages - s + count - 1 for s in range(stages)]
    return tuple(min(k, count * largest_share(r, micro_batches)) for k, r in zip(wanted, replicas, strict=True))


def _counts(name: str, count: int, replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Return the most slices that a replica of each stage holds."""
    warm_up = _warm_up(name, count, replicas, micro_batches)
    if name not in SPLIT:
        return warm_up
    own = (count * largest_share(r, micro_batches) for r in replicas)
    return tuple(min(ahead + s, most) for s, (ahead, most) in enumerate(zip(warm_up, own, strict=True)))


def _write(name: str, count: int, replicas: Sequence[int], micro_batches: int) -> Schedule:
    """Write the lists of stages with equally many replicas."""
    if len(set(replicas)) > 1:
        raise InputError(f"token slices need equally many replicas of all stages, not {tuple(replicas)}")
    ahead, split = _warm_up(name, count, replicas, micro_batches), name in SPLIT
    orders = (_order(s, own, count, ahead[s], split) for s, own in shares(replicas, micro_batches))
    return Schedule(name, tuple((*order, *closing((order[0].stage,), replicas)) for order in orders))


def _order(stage: int, own: range, count: int, ahead: int, split: bool) -> list[Action]:
    """Write a replica's list; in split backwards weight gradients are ``stage`` units late."""
    units = [(m, k) for m in own for k in reversed(range(count))]
    forwards = [Action(Kind.FORWARD, stage, m, k) for m in own for k in range(count)]
    backwards = [Action(Kind.INPUT_GRADIENT if split else Kind.BACKWARD, stage, *unit) for unit in units]
    weights = [Action(Kind.WEIGHT_GRADIENT, stage, *unit) for unit in units if split]
    order = forwards[:ahead]
    for x, backward in enumerate(backwards):
        order += [backward, *weights[x - stage : x - stage + 1] * (x >= stage), *forwards[ahead + x : ahead + x + 1]]
    return [*order, *weights[max(len(units) - stage, 0) :]]
