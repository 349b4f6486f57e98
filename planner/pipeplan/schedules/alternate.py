"""The common part of the 1F1B families: a few forwards to warm up, then one backward, one forward, in turn.

::

    k = 2, 4 micro-batches              F0 F1 B0 F2 B1 F3 B2 B3 U
    k = 2, replica 1 of 2, 8 of them    F1 F3 B1 F5 B3 F7 B5 B7 R U

Every forward after the warm-up follows the backward whose memory it takes over, so a replica of stage s never holds
more than k_s micro-batches. The choice of k is free but for one rule. Let stage s have r_s replicas. On stage t, B(m)
follows F(m + (k_t − 1) r_t), which needs that micro-batch's forward on every stage s before it; there it follows
B(m + (k_t − 1) r_t − k_s r_s). So the lists end if

    (k_t − 1) r_t < k_s r_s        for all stages s < t,

because then every such chain leads to an earlier micro-batch; and with M ≥ k_s r_s + r_t they end only if, because
otherwise every backward waits for another one. Without replicas, neighbouring stages say it for all.
"""

from collections.abc import Sequence

from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules.closing import closing
from pipeplan.schedules.family import check_size, largest_share, shares


def one_forward_one_backward(
    replicas: Sequence[int], micro_batches: int, in_flight: Sequence[int], family: str = "1f1b"
) -> Schedule:
    """The 1F1B lists in which each replica of stage s holds at most ``in_flight[s]`` micro-batches.

    Parameters
    ----------
    replicas, in_flight : sequence of int
        One a stage, at least 1. More in flight than a replica has micro-batches counts as all of them.
    family : str
        The schedule's name.

    Raises
    ------
    InputError
        If the numbers are no such, or the lists would wait for each other for ever; the text names the stages.
    """
    check_size(replicas, micro_batches)
    if len(in_flight) != len(replicas) or min(in_flight) < 1:
        raise InputError(
            f"every one of the {len(replicas)} stages needs at least one micro-batch in flight, not {tuple(in_flight)}"
        )
    counts = [min(k, largest_share(r, micro_batches)) for k, r in zip(in_flight, replicas, strict=True)]
    pair = first_deadlock(replicas, counts)
    if pair is not None:
        raise InputError(_waits_for_ever(*pair, replicas, counts))
    orders = tuple(_alternate(s, own, counts[s], replicas) for s, own in shares(replicas, micro_batches))
    return Schedule(family, orders)


def first_deadlock(replicas: Sequence[int], in_flight: Sequence[int]) -> tuple[int, int] | None:
    """Two stages s < t with (k_t − 1) r_t ≥ k_s r_s, or None: then no number of micro-batches deadlocks."""
    for t, (k_t, r_t) in enumerate(zip(in_flight, replicas, strict=True)):
        for s in range(t):
            if (k_t - 1) * r_t >= in_flight[s] * replicas[s]:
                return s, t
    return None


def _waits_for_ever(s: int, t: int, replicas: Sequence[int], in_flight: Sequence[int]) -> str:
    (r_s, k_s), (r_t, k_t) = (replicas[s], in_flight[s]), (replicas[t], in_flight[t])
    return (
        f"1F1B with {k_t} micro-batches in flight on each of {r_t} replicas of stage {t}, and {k_s} on each of {r_s} "
        f"of stage {s}, would wait for ever: stage {t} begins its backwards after forward {(k_t - 1) * r_t + 1}, stage "
        f"{s} makes only {k_s * r_s} before it needs one; hold at least {(k_t - 1) * r_t // r_s + 1} on stage {s}, or "
        f"at most {(k_s * r_s - 1) // r_t + 1} on stage {t}"
    )


def _alternate(stage: int, own: Sequence[int], in_flight: int, replicas: Sequence[int]) -> tuple[Action, ...]:
    """One replica's list."""
    order = [Action(Kind.FORWARD, stage, m) for m in own[:in_flight]]
    for i, m in enumerate(own):
        order.append(Action(Kind.BACKWARD, stage, m))
        if i + in_flight < len(own):
            order.append(Action(Kind.FORWARD, stage, own[i + in_flight]))
    return (*order, *closing((stage,), replicas))
