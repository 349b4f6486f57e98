"""1F1B: warm-up forwards, then one backward and one forward in turn; and the families with this order.

::

    k = 2, 4 micro-batches              F0 F1 B0 F2 B1 F3 B2 B3 U
    k = 2, replica 1 of 2, 8 of them    F1 F3 B1 F5 B3 F7 B5 B7 R U

Every forward after the warm-up follows the backward whose memory it reuses, so a replica of stage s never holds more
than k_s micro-batches. One condition restricts k. Let stage s have r_s replicas. On stage t, B(m) follows
F(m + (k_t − 1) r_t), which needs that micro-batch's forward on every stage s before it; there it follows
B(m + (k_t − 1) r_t − k_s r_s). The lists run to the end if

    (k_t − 1) r_t < k_s r_s        for all stages s < t,

because then every such chain leads to an earlier micro-batch. With M ≥ k_s r_s + r_t the condition is also necessary,
because otherwise every backward waits for another one. Without replicas it suffices to check neighbouring stages.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules.family import (
    Family,
    check_size,
    closing,
    devices_from,
    in_lanes,
    largest_share,
    per_replica,
)


def one_forward_one_backward(
    replicas: Sequence[int], micro_batches: int, in_flight: Sequence[int], family: str = "1f1b"
) -> Schedule:
    """Write the 1F1B lists in which each replica of stage s holds at most ``in_flight[s]`` micro-batches.

    Parameters
    ----------
    replicas, in_flight : sequence of int
        One number per stage, at least 1. Counts above a replica's number of micro-batches are reduced to it.
    family : str
        The schedule's name.

    Raises
    ------
    InputError
        If the numbers are invalid, or the lists would deadlock; the text names the stages.
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
    orders = in_lanes(lambda stage, own: _alternate(stage, own, counts[stage], replicas), replicas, micro_batches)
    return Schedule(family, orders)


def first_deadlock(replicas: Sequence[int], in_flight: Sequence[int]) -> tuple[int, int] | None:
    """Return two stages s < t with (k_t − 1) r_t ≥ k_s r_s, or None if no number of micro-batches deadlocks."""
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
    """Return one replica's list."""
    order = [Action(Kind.FORWARD, stage, m) for m in own[:in_flight]]
    for i, m in enumerate(own):
        order.append(Action(Kind.BACKWARD, stage, m))
        if i + in_flight < len(own):
            order.append(Action(Kind.FORWARD, stage, own[i + in_flight]))
    return (*order, *closing((stage,), replicas))


def _in_flight_sno(replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Return ⌈R_i / r_i⌉ for stage i (N − i + 1 without replicas), at most a replica's share."""
    check_size(replicas, micro_batches)
    return per_replica(devices_from(replicas), replicas, micro_batches)


def _write_sno(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """Write 1F1B-SNO: one forward, one backward, with the fewest micro-batches in flight that keep all devices busy.

    ::

        time         0  1  2  3  4  5  6  7  8  9 10 11     3 stages, 4 micro-batches, F = B = 1
        device 0    F0 F1 F2  .  . B0 F3 B1  . B2  . B3
        device 1     . F0 F1  . B0 F2 B1 F3 B2  . B3  .
        device 2     .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .

    Stage i (from 1) of N warms up with N − i + 1 forwards. With replicas, the R_i = r_i + … + r_N devices from stage i
    on need one micro-batch each, so each of its r_i replicas warms up with ⌈R_i / r_i⌉. With free links a step of equal
    stages takes (M + N − 1)(F + B). Transfer times add up over the micro-batches, because a device has no other work
    while a tensor is in transit. The order is that of PipeDream-flush and of Megatron-LM's schedule without
    interleaving; the name (synchronous device, no overlap) is BaPipe's, as we understand it (arXiv 2012.12544).
    """
    return one_forward_one_backward(replicas, micro_batches, _in_flight_sno(replicas, micro_batches), "1f1b-sno")


SNO = Family(
    "1f1b-sno",
    _write_sno,
    _in_flight_sno,
    frozenset({Overlap.NONE, Overlap.COPY}),
    "one forward, one backward; N - i + 1 micro-batches in flight at stage i",
)


def _in_flight_so(replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Return ⌈(2 R_i − r_i) / r_i⌉ for stage i (2(N − i) + 1 without replicas), at most a replica's share."""
    check_size(replicas, micro_batches)
    wanted = [2 * behind - r for behind, r in zip(devices_from(replicas), replicas, strict=True)]
    return per_replica(wanted, replicas, micro_batches)


def _write_so(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """Write 1F1B-SO: one forward, one backward, with a doubled warm-up that overlaps transfers with computation.

    ::

        time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15     3 stages, 4 micro-batches, F = B = SR = 1
        device 0    F0 F1 F2 F3  .  .  .  .  . B0  . B1  . B2  . B3
        device 1     .  . F0 F1 F2  .  . B0 F3 B1  . B2  . B3  .  .
        device 2     .  .  .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .  .  .

    Stage i (from 1) of N holds 2(N − i) + 1 micro-batches: one for every device and for every link between stage i and
    the last stage and back. With replicas, and R_i = r_i + … + r_N, each of its r_i replicas holds
    ⌈(2 R_i − r_i) / r_i⌉. With equal stages and transfers that take SR ≤ (F + B) / 2 without occupying a device, a step
    takes (M + N − 1)(F + B) + (N − 1) 2 SR: a link's time counts once, not per micro-batch. The name (synchronous
    device, overlap) is BaPipe's, as we understand it (arXiv 2012.12544); DAPPLE's policy of 2(S − s) − 1 in flight is
    the same count.
    """
    return one_forward_one_backward(replicas, micro_batches, _in_flight_so(replicas, micro_batches), "1f1b-so")


SO = Family(
    "1f1b-so",
    _write_so,
    _in_flight_so,
    frozenset({Overlap.COPY}),
    "one forward, one backward, doubled warm-up; 2(N - i) + 1 micro-batches in flight at stage i hide the links",
)


def _write_streaming(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """Write 1F1B-AS: one forward, one backward, on devices whose tensors leave while they are being made.

    ::

        device 0     F0━━F1━━F2━━            the link is busy under the forward that fills it,
        link 0→1     ▔▔▔▔▔▔▔▔▔▔▔▔            so a hop costs its latency only
        device 1         F0━━F1━━B0━━

    The order is that of 1F1B-SNO (N − i + 1 in flight at stage i, from 1): with streaming links there is no transfer
    time to hide, and a step of equal stages takes (M + N − 1)(F + B). The name (asynchronous device) is BaPipe's, as we
    understand it (arXiv 2012.12544).
    """
    return replace(_write_sno(replicas, micro_batches), family="1f1b-as")


AS = Family(
    "1f1b-as",
    _write_streaming,
    _in_flight_sno,
    frozenset({Overlap.STREAM}),
    "one forward, one backward on streaming devices; N - i + 1 micro-batches in flight at stage i",
)


def _in_flight_fbp(replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Return ⌈2 R_i / r_i⌉ for stage i (2(N − i + 1) without replicas), at most a replica's share."""
    check_size(replicas, micro_batches)
    return per_replica([2 * behind for behind in devices_from(replicas)], replicas, micro_batches)


def _write_fbp(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """Write FBP-AS: forwards and backwards of different micro-batches concurrently on one device.

    ::

        time            0  1  2  3  4  5  6  7  8  9      3 stages, 5 micro-batches, one unit = F + B
        device 0  F    F0 F1 F2 F3 F4  .  .  .  .  .
                  B     .  .  .  .  . B0 B1 B2 B3 B4
        device 1  F     . F0 F1 F2 F3 F4  .  .  .  .
                  B     .  .  .  . B0 B1 B2 B3 B4  .
        device 2  F     .  . F0 F1 F2 F3 F4  .  .  .
                  B     .  .  . B0 B1 B2 B3 B4  .  .

    A device divides its arithmetic units between its two lanes in proportion to F and B, so that either takes F + B. A
    micro-batch then returns to stage i (from 1) after 2(N − i + 1) units, which is the number that the stage holds, and
    a step of equal stages takes (M + 2N − 1)(F + B). With replicas, and R_i = r_i + … + r_N, each of a stage's r_i
    replicas holds ⌈2 R_i / r_i⌉. The links carry one tensor per F + B in each direction, which is less than with 1F1B.
    The name is BaPipe's, as we understand it (arXiv 2012.12544).

    A list is both lanes merged by start time, the forward first where both start together. The result is the 1F1B list
    with 2(N − i + 1) in flight, which a runtime with one lane can run unchanged. On a device with two lanes, the list
    also limits the start of a forward: the backwards before it in the list must have freed their memory.
    """
    one_lane = one_forward_one_backward(replicas, micro_batches, _in_flight_fbp(replicas, micro_batches), "fbp-as")
    return replace(one_lane, two_lanes=True)


FBP = Family(
    "fbp-as",
    _write_fbp,
    _in_flight_fbp,
    frozenset({Overlap.STREAM}),
    "forwards beside backwards on one device; 2(N - i + 1) micro-batches in flight at stage i",
    two_lanes=True,
)


FAMILIES = (SNO, SO, AS, FBP)
