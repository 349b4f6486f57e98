"""Costs of layers at a micro-batch size, and the bytes of the optimiser's state."""

from dataclasses import dataclass
from fractions import Fraction

from .documents import Device, Document, Question

TIMES = ("forward", "backward", "input_gradient", "weight_gradient", "update")
SIZES = ("saved", "output", "workspace")
ITEM = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
STATES = {"sgd": 0, "momentum": 1, "adam": 2}

Group = tuple[Device, ...]
Groups = tuple[Group, ...]


class ContradictionError(Exception):
    """The question contradicts itself: it has no answer, whatever the plan."""


@dataclass(frozen=True)
class Costs:
    """One layer on one kind at one size, for one micro-batch."""

    forward: int
    backward: int
    input_gradient: int
    weight_gradient: int
    update: int
    saved: int
    output: int
    workspace: int


def in_proportion(cost: Costs, saved: int) -> int:
    """Workspace of a member that saves so much of the layer's saved bytes."""
    return cost.workspace if not cost.saved else -(-cost.workspace * saved // cost.saved)


def sizes(question: Question) -> tuple[int, ...]:
    """Micro-batch sizes in the space: those asked for, or the divisors of the batch that every kind's profiles reach.

    Where sizes beyond the measured ones are allowed, powers of two and measured ones, the twelve smallest.
    """
    batch, job = question.batch, question.job
    measured = [sorted(question.profiles(kind)) for kind in question.used_kinds]
    divisors = [size for size in range(1, batch + 1) if batch % size == 0]
    low, high = max(own[0] for own in measured), min(own[-1] for own in measured)
    inside = [size for size in divisors if low <= size <= high]
    known = {size for own in measured for size in own}
    wide = [size for size in divisors if bin(size).count("1") == 1 or size in known][:12]
    found = wide if job["extrapolate"] else inside
    if not found:
        raise ContradictionError("no micro-batch size divides the batch")
    asked = tuple(batch // count for count in job["micro_batches"])
    for size in asked:
        if not job["extrapolate"] and any(not own[0] <= size <= own[-1] for own in measured):
            raise ContradictionError(f"micro-batches of {size} lie outside the profiles")
    return asked or tuple(found)


def layer_costs(question: Question, kind: str, size: int) -> list[Costs]:
    """Measured, between two measured sizes linear, beyond them in proportion; then the kind's speed divides times."""
    profiles = question.profiles(kind)
    rows = [_row(question, profiles, size, i) for i in range(question.n)]
    speed = Fraction(str(question.kinds[kind].get("speed", 1.0)))
    if speed != 1:
        rows = [{name: round(value / speed) if name in TIMES else value for name, value in row.items()} for row in rows]
    return [Costs(**row) for row in rows]


def _row(question: Question, profiles: dict[int, list[Document]], size: int, layer: int) -> dict[str, int]:
    def figure(at: int, name: str) -> int:
        return int(profiles[at][layer].get(name, 0))

    below = max((other for other in profiles if other <= size), default=None)
    above = min((other for other in profiles if other >= size), default=None)
    if below is not None and above is not None:
        share = Fraction(size - below, above - below) if above > below else Fraction(0)
        return {
            name: round(figure(below, name) + share * (figure(above, name) - figure(below, name)))
            for name in (*TIMES, *SIZES)
        }
    nearest = below if below is not None else above
    assert nearest is not None
    factor = Fraction(size, nearest)
    return {
        name: figure(nearest, name) if name == "update" else round(factor * figure(nearest, name))
        for name in (*TIMES, *SIZES)
    }


def state_bytes(question: Question, parameters: int) -> int:
    """Optimiser state: each tensor in single precision or better, and a single-precision copy of 16-bit weights."""
    item = ITEM[question.dtype]
    count = parameters // item
    if question.job.get("state_bytes") is not None:
        return count * int(question.job["state_bytes"])
    return count * (STATES[question.job["optimizer"]] * max(item, 4) + (4 if item == 2 else 0))


def gradient_bytes(question: Question, parameters: int) -> int:
    """Gradients as they are kept: in the parameters' format, unless the job states other bytes for each."""
    stated = question.job.get("gradient_bytes")
    return parameters if stated is None else parameters // ITEM[question.dtype] * int(stated)
