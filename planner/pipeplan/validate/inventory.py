"""Every action once, and each on the device of its stage."""

from collections import Counter
from collections.abc import Iterator

from pipeplan.schedule import Action, Kind, Schedule


def strayed(schedule: Schedule, stages: int, micro_batches: int) -> Iterator[str]:
    """Actions of stages or micro-batches that do not exist, and actions on a device that does not own their stage.

    A stage's owner is the device that holds most of its actions.
    """
    counts: dict[int, Counter[int]] = {}
    for device, order in enumerate(schedule.orders):
        for action in order:
            counts.setdefault(action.stage, Counter())[device] += 1
    for device, order in enumerate(schedule.orders):
        for action in order:
            owner = counts[action.stage].most_common(1)[0][0]
            if not 0 <= action.stage < stages:
                yield f"{action} on device {device}: there are stages 0 to {stages - 1} only"
            elif not 0 <= action.micro_batch < micro_batches:
                yield f"{action} on device {device}: there are micro-batches 0 to {micro_batches - 1} only"
            elif device != owner:
                yield f"{action} stands on device {device}, but device {owner} owns stage {action.stage}; move it there"


def missing_and_doubled(schedule: Schedule, stages: int, micro_batches: int) -> Iterator[str]:
    """Actions that are there twice or not at all, and micro-batches with two kinds of backward."""
    counts = Counter(schedule.actions())
    for action, count in counts.items():
        if count > 1:
            yield f"{action} is there {count} times; keep one"
    slices = 1 + max((action.slice for action in counts), default=0)
    for stage in range(stages):
        for micro_batch in range(micro_batches):
            for part in range(slices):
                yield from _there_and_back(counts, stage, micro_batch, part)
    for kind, name in ((Kind.UPDATE, "update"), (Kind.REDUCE, "reduction")):
        have = {action.stage for action in counts if action.kind is kind}
        for stage in range(stages) if have else ():
            if stage not in have:
                yield f"stage {stage} has no {name}, while stage {min(have)} has one; add {Action(kind, stage)}"


def _there_and_back(counts: Counter[Action], stage: int, micro_batch: int, part: int) -> Iterator[str]:
    forward, joined, inputs, weights = (
        Action(kind, stage, micro_batch, part)
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    )
    if forward not in counts:
        yield f"{forward} is missing"
    if joined in counts:
        for split in (inputs, weights):
            if split in counts:
                yield f"{split} stands beside the joined backward {joined}; drop one of them"
    elif inputs not in counts and weights not in counts:
        yield f"{joined} is missing (or {inputs} and {weights})"
    elif inputs not in counts:
        yield f"{weights} has no {inputs}"
    elif weights not in counts:
        yield f"{inputs} has no {weights}"
