"""`Family`: a named generator of schedules, and the parts that all generators share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from math import gcd
from typing import TypeVar

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.core.schedule import Action, Kind, Schedule, like_lists
from pipeplan.core.validate import validate_schedule
from pipeplan.core.validate.memory import most_in_flight

Answer = TypeVar("Answer")

FOUND = "found"
"""Name of the schedules that a search found and no family wrote."""


@dataclass(frozen=True)
class Family:
    """A named generator of schedules for any number of stages, replicas and micro-batches.

    Attributes
    ----------
    name : str
    write : callable
        ``write(replicas, micro_batches)`` returns the `Schedule`: stage s has ``replicas[s]`` replicas, and devices are
        numbered stage by stage, replica by replica.
    in_flight : callable
        ``in_flight(replicas, micro_batches)`` returns for every stage the largest number of micro-batches that any of
        its replicas holds at a time (from the start of a forward to the end of its backward), whatever the times are.
    suits : frozenset of Overlap
        The clusters for which `pipeplan.solve` considers the family by default.
    summary : str
        One line for tables.
    two_lanes : bool
        The schedule's devices run forwards beside backwards.
    phases : bool
        Every replica runs all its forwards before its first backward.
    splits : bool
        Backwards are split in input and weight gradients.
    joins : bool
        Some of them are joined nevertheless.
    """

    name: str
    write: Callable[[Sequence[int], int], Schedule]
    in_flight: Callable[[Sequence[int], int], tuple[int, ...]]
    suits: frozenset[Overlap]
    summary: str
    two_lanes: bool = False
    phases: bool = False
    splits: bool = False
    joins: bool = False

    @property
    def alternates(self) -> bool:
        """Whether it is a 1F1B family: warm-up forwards, then a backward and a forward in turn, on one lane."""
        return alternates(self.name)


def checked(family: Family) -> Family:
    """Return the family of another package, of which all that it writes and states is checked."""
    write, held = partial(_written, family=family), partial(_held, family=family)
    return replace(family, write=write, in_flight=held, phases=False)


def _asked(family: Family, call: Callable[[Sequence[int], int], Answer], replicas: Sequence[int], many: int) -> Answer:
    try:
        return call(replicas, many)
    except Exception as error:
        raise _faulty(family, replicas, many, f"{type(error).__name__}: {error}") from error


def _faulty(family: Family, replicas: Sequence[int], many: int, why: str) -> InputError:
    return InputError(
        f"schedule family {family.name!r}, for replicas {tuple(replicas)} and {many} micro-batches: {why}"
    )


def _written(replicas: Sequence[int], many: int, *, family: Family) -> Schedule:
    """Return the schedule with reductions and updates: complete, without deadlock, holding no more than is stated."""
    schedule, most = _asked(family, family.write, replicas, many), _held(replicas, many, family=family)
    homes = tuple(tuple(range(a, b)) for a, b in pairwise(accumulate(replicas, initial=0)))
    try:
        orders = [
            (*(action for action in order if action.kind.per_micro_batch), *closing((stage,), replicas))
            for (stage, _), order in zip(shares(replicas, many), schedule.orders, strict=True)
        ]
        schedule = replace(schedule, family=family.name, orders=tuple(orders))
        validate_schedule(schedule, len(replicas), many, homes, ())
    except (PipeplanError, AttributeError, TypeError, ValueError) as error:
        raise _faulty(family, replicas, many, str(error)) from error
    for stage, devices in enumerate(homes):
        own = max(most_in_flight(schedule.orders[device], stage) for device in devices)
        if own > most[stage]:
            raise _faulty(
                family, replicas, many, f"stage {stage} holds {own} micro-batches, and in_flight says {most[stage]}"
            )
    return schedule


def _held(replicas: Sequence[int], many: int, *, family: Family) -> tuple[int, ...]:
    """Return what each stage holds, as stated: whole numbers from 1 to the largest share of the micro-batches."""
    most = tuple(map(int, _asked(family, family.in_flight, replicas, many)))
    if len(most) != len(replicas) or not all(
        1 <= held <= largest_share(r, many) for held, r in zip(most, replicas, strict=True)
    ):
        raise _faulty(family, replicas, many, f"in_flight says {most}: one number per stage, 1 to its share, is needed")
    return most


def family_of(schedule: Schedule, summary: str) -> Family:
    """Return the family that has this schedule alone, whatever numbers it is asked for."""
    held = tuple(
        max(most_in_flight(schedule.orders[device], stage) for device in devices[:: schedule.lanes])
        for stage, devices in enumerate(schedule.homes)
    )
    ways = partial(_always, answer=schedule), partial(_always, answer=held)
    return Family(schedule.family, *ways, frozenset(), summary, two_lanes=schedule.two_lanes)


def of_stages(family: Family, devices: int) -> Family:
    """Return the family of the stages themselves of one that counts all that a device runs of several as one stage."""
    ways = partial(_on_devices, family, devices), partial(_held_by_stages, family, devices)
    return Family(family.name, *ways, frozenset(), family.summary)


def _on_devices(family: Family, devices: int, replicas: Sequence[int], micro_batches: int) -> Schedule:
    return family.write(replicas[:devices], micro_batches)


def _held_by_stages(family: Family, devices: int, replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Return what any lane holds of each stage; lanes have the same lists for equally many micro-batches."""
    every = {max(micro_batches // replicas[0], 1), largest_share(replicas[0], micro_batches)}
    lanes = [family.write((1,) * devices, many) for many in every]
    return tuple(
        max(most_in_flight(lane.orders[device], stage) for lane in lanes for device in homes)
        for stage, homes in enumerate(lanes[0].homes)
    )


def _always(_replicas: Sequence[int], _micro_batches: int, *, answer: Answer) -> Answer:
    return answer


def alternates(name: str) -> bool:
    """Return whether a family of that name is a 1F1B family."""
    return name.startswith("1f1b") and name != "1f1b-slices"


def check_size(replicas: Sequence[int], micro_batches: int) -> None:
    """Refuse a pipeline without stages, a stage without replicas or a step without micro-batches."""
    if not replicas or min(replicas) < 1 or micro_batches < 1:
        raise InputError(
            f"a schedule needs at least one stage, one replica of each and one micro-batch, not replicas "
            f"{tuple(replicas)} and {micro_batches} micro-batches"
        )


def shares(replicas: Sequence[int], micro_batches: int) -> Iterator[tuple[int, range]]:
    """Yield every device's stage and its micro-batches: replica j of r runs j, j + r, j + 2 r, …"""
    for stage, count in enumerate(replicas):
        for replica in range(count):
            yield stage, range(replica, micro_batches, count)


def in_lanes(
    write: Callable[[int, range], tuple[Action, ...]], replicas: Sequence[int], micro_batches: int
) -> Sequence[tuple[Action, ...]]:
    """Return every device's list, which ``write`` gives for its stage and micro-batches; like lanes are written once.

    Lists must depend on how many micro-batches there are, and not on their numbers.
    """
    lanes = gcd(*replicas, micro_batches)
    own = [count // lanes for count in replicas]
    return like_lists((write(stage, some) for stage, some in shares(own, micro_batches // lanes)), lanes)


def devices_from(replicas: Sequence[int]) -> tuple[int, ...]:
    """Return R_s = r_s + r_{s+1} + …: the number of devices from each stage on."""
    return tuple(sum(replicas[s:]) for s in range(len(replicas)))


def per_replica(wanted: Sequence[int], replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Divide each stage's number in flight over its replicas, at most a replica's share of the micro-batches."""
    return tuple(min(-(-want // r), largest_share(r, micro_batches)) for want, r in zip(wanted, replicas, strict=True))


def largest_share(replicas: int, micro_batches: int) -> int:
    """Return ⌈M / r⌉: the largest number of micro-batches of a replica, so it never holds more."""
    return -(-micro_batches // replicas)


def closing(stages: Iterable[int], replicas: Sequence[int], tied: Iterable[Sequence[int]] = ()) -> tuple[Action, ...]:
    """Return the reductions and updates at the end of the list of a device with these stages.

    Reductions are sorted by the first stage of each collective, an order that all devices share. So those of different
    groups of tied stages do not wait for each other.

    Parameters
    ----------
    replicas : sequence of int
        Replicas of every stage of the pipeline; a stage with one reduces nothing, unless it is tied.
    tied : iterable of sequence of int
        Groups of stages that hold copies of the same weights.
    """
    own = sorted(stages)
    first = {stage: min(group) for group in tied for stage in group}
    reducing = sorted((s for s in own if replicas[s] > 1 or s in first), key=lambda s: (first.get(s, s), s))
    return (*(Action(Kind.REDUCE, s) for s in reducing), *(Action(Kind.UPDATE, s) for s in own))
