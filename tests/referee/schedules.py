"""Action lists of the schedule families, and how many micro-batches each of them holds.

An action is ``(kind, stage, micro-batch)``; of a stage with r replicas, replica j runs the micro-batches j, j + r, …
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from .placed import JOINING, PLACED, SPLIT

Action = tuple[str, int, int]

SUITED = {
    "none": ("gpipe", "1f1b-sno"),
    "copy": ("gpipe", "1f1b-sno", "1f1b-so", "1f1b"),
    "stream": ("gpipe", "1f1b-as", "fbp-as"),
}
"""Families that are considered where a job names none. ``1f1b`` chooses its counts itself."""

WARM_UP = {"1f1b-sno": (1, 0), "1f1b-as": (1, 0), "1f1b-so": (2, 1), "fbp-as": (2, 0)}
"""``(a, b)``: a stage of r of the R devices from it on holds ⌈(a R − b r) / r⌉ micro-batches a replica."""


SLICED = ("1f1b-slices", "terapipe", "zb-h1-slices")
"""Families of token slices. There an action's micro-batch counts slices: m S + k is slice k of micro-batch m."""

HALVED = ("zb-h1-slices", *SPLIT)
"""Families whose backwards are split; they are considered where they are named."""


@dataclass(frozen=True)
class Family:
    """A name and, for every stage, how many micro-batches a replica holds at most."""

    name: str
    in_flight: tuple[int, ...]

    @property
    def lanes(self) -> int:
        """Two where forwards run beside backwards."""
        return 2 if self.name == "fbp-as" else 1

    @property
    def halved(self) -> bool:
        """Whether backwards are split."""
        return self.name in HALVED

    @property
    def joins(self) -> bool:
        """Whether some are not."""
        return self.name in JOINING


def share(replicas: int, count: int) -> int:
    """Micro-batches of the busiest replica."""
    return -(-count // replicas)


def counts(name: str, replicas: Sequence[int], count: int) -> tuple[int, ...]:
    """In-flight counts of a family that does not choose them."""
    if name == "gpipe":
        return tuple(share(r, count) for r in replicas)
    a, b = WARM_UP[name]
    wanted = [-(-(a * sum(replicas[s:]) - b * r) // r) for s, r in enumerate(replicas)]
    return tuple(min(k, share(r, count)) for k, r in zip(wanted, replicas, strict=True))


def free_counts(replicas: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """The counts that ``1f1b`` may choose: from SNO's on, falling along the pipeline.

    The most is a micro-batch for each device from the stage on, and two more for each of those behind the stage.

    The excess of a stage is what its replicas hold beyond the devices from it on. One that holds more than SNO has no
    more excess than any stage before it, unless that one holds all of its micro-batches.
    """
    least, behind = counts("1f1b-sno", replicas, count), [sum(replicas[s:]) for s in range(len(replicas))]
    most = [min(-(-(rest + 2 * (rest - r)) // r), share(r, count)) for r, rest in zip(replicas, behind, strict=True)]
    for chosen in product(*(range(a, b + 1) for a, b in zip(least, most, strict=True))):
        excess = [k * r - rest for k, r, rest in zip(chosen, replicas, behind, strict=True)]
        if all(
            chosen[t] == least[t] or excess[t] <= excess[s] or chosen[s] >= share(replicas[s], count)
            for t in range(len(replicas))
            for s in range(t)
        ):
            yield chosen


def of_slices(name: str, replicas: Sequence[int], count: int, slices: int) -> tuple[int, ...]:
    """The slices that a replica of each stage holds."""
    behind = [len(replicas) - s + slices - 1 for s in range(len(replicas))]
    if name == "terapipe":
        behind = [count * slices] * len(replicas)
    wanted = [behind[0]] * len(replicas) if name in HALVED else behind
    return tuple(min(k, share(r, count) * slices) for k, r in zip(wanted, replicas, strict=True))


def names(asked: Sequence[str], overlap: str, objective: str, slices: int = 1) -> tuple[str, ...]:
    """The families of a job, ``any`` left out; for the bottleneck one by default, the one that holds least."""
    if slices > 1:
        return tuple(name for name in SLICED if name in asked or (not asked and name not in HALVED))
    named = tuple(name for name in asked if name not in ("any", *SLICED, *PLACED))
    if named:
        return named
    if objective == "bottleneck":
        return ("1f1b-as",) if overlap == "stream" else ("1f1b-sno",)
    return SUITED[overlap]


def families(
    question_names: Sequence[str], replicas: Sequence[int], count: int, objective: str, slices: int = 1
) -> list[Family]:
    """Every family with its counts. An endless pipeline is filled however few micro-batches a step has."""
    if slices > 1:
        return [Family(name, of_slices(name, replicas, count, slices)) for name in question_names]
    found: list[Family] = []
    endless = count if objective != "bottleneck" else max(count, 2 * sum(replicas))
    for name in question_names:
        if name != "1f1b":
            found.append(Family(name, counts(name, replicas, endless)))
        elif objective != "bottleneck":
            found += [Family(name, chosen) for chosen in free_counts(replicas, count)]
        else:
            found.append(Family(name, counts("1f1b-sno", replicas, endless)))
    return found


def write(family: Family, replicas: Sequence[int], count: int, summed: set[int], slices: int = 1) -> list[list[Action]]:
    """One list for each replica of each stage; ``summed``: stages that sum gradients with other stages."""
    lists = []
    for s, r in enumerate(replicas):
        for j in range(r):
            own = [m * slices + k for m in range(j, count, r) for k in range(slices)]
            back = [m * slices + k for m in range(j, count, r) for k in reversed(range(slices))]
            ahead = len(own) if family.name == "gpipe" else min(family.in_flight[s], len(own))
            if family.halved:  # a weight gradient for each stage before this one is still to come
                ahead = min(len(replicas) - s + slices - 1, len(own))
            order: list[Action] = [("F", s, m) for m in own[:ahead]]
            for i, m in enumerate(back):
                order.append(("I" if family.halved else "B", s, m))
                order += [("W", s, back[i - s])] if family.halved and i >= s else []
                order += [("F", s, later) for later in own[i + ahead : i + ahead + 1]]
            order += [("W", s, m) for m in back[max(len(back) - s, 0) :] if family.halved]
            if r > 1 or s in summed:
                order.append(("R", s, 0))
            lists.append([*order, ("U", s, 0)])
    return lists
