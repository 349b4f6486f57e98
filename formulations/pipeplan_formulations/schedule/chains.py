"""What must run before and after every operation, however long devices wait: the chain of its own micro-batch.

::

    F_0 ─▶ F_1 ─▶ … ─▶ F_{S−1} ─▶ I_{S−1} ─▶ … ─▶ I_1 ─▶ I_0        heads: longest way to the start of an operation
                                     │              │      │        tails: longest way from its end to the step's end
                                  W_{S−1}          W_1    W_0
"""

from pipeplan_formulations.schedule.instance import Kind, Op, PipelineSchedule

OfKind = dict[Kind, tuple[int, ...]]
"""A number for each kind and stage."""


def heads(problem: PipelineSchedule) -> OfKind:
    """Least time from the start of the step to the start of each kind at each stage, by (1) to (3) and (6)."""
    last = problem.stages - 1
    forward = [0]
    for s in range(last):
        forward.append(forward[s] + problem.forward[s] + problem.away[s])
    backward = [0] * last + [forward[last] + problem.forward[last]]
    for s in reversed(range(last)):
        backward[s] = backward[s + 1] + problem.backward[s + 1] + problem.away_back[s]
    weight = [b + time for b, time in zip(backward, problem.backward, strict=True)]
    found: OfKind = {"F": tuple(forward), "I": tuple(backward), "W": tuple(weight)}
    rows: dict[Kind, Kind] = {"A": "F", "G": "I"}
    for kind, source in rows.items():
        ready = (problem.ready.get((kind, s), 0) for s in range(problem.stages))
        found[kind] = tuple(head + time for head, time in zip(found[source], ready, strict=True))
    return found


def tails(problem: PipelineSchedule) -> OfKind:
    """Least time from the end of each kind at each stage to the end of the step, endings included.

    Those of transfers are told only where there are some.
    """
    last = problem.stages - 1
    backward = [w + ending for w, ending in zip(problem.weight, problem.ending, strict=True)]
    for s in range(1, problem.stages):
        backward[s] = max(backward[s], problem.away_back[s - 1] + problem.backward[s - 1] + backward[s - 1])
    forward = [0] * last + [problem.backward[last] + backward[last]]
    for s in reversed(range(last)):
        forward[s] = problem.away[s] + problem.forward[s + 1] + forward[s + 1]
    onward = [problem.lag[s] + problem.forward[s + 1] + forward[s + 1] for s in range(last)]
    back = [problem.lag_back[s] + problem.backward[s] + backward[s] for s in range(last)]
    return {
        "F": tuple(forward),
        "I": tuple(backward),
        "W": problem.ending,
        "A": (*onward, 0),
        "G": (0, *back),
    }


def precedes(problem: PipelineSchedule, a: Op, b: Op) -> bool:
    """Whether the chain of a micro-batch, and the order of those of one kind and stage, put a before b."""
    if a.micro_batch > b.micro_batch:
        return False
    if a.kind == b.kind and a.stage == b.stage:
        return a.micro_batch < b.micro_batch
    if a.kind == "W":
        return False
    if b.kind == "W":  # behind I of its stage
        return depth(problem, a) <= depth(problem, Op("I", b.stage, 0))
    return depth(problem, a) < depth(problem, b)


def depth(problem: PipelineSchedule, op: Op) -> int:
    """How many operations and transfers of its micro-batch come before it, at most; W behind all of them."""
    steps = {
        "F": 2 * op.stage,
        "A": 2 * op.stage + 1,
        "I": 4 * problem.stages - 3 - 2 * op.stage,
        "G": 4 * problem.stages - 2 - 2 * op.stage,
        "W": 4 * problem.stages + op.stage,
    }
    return steps[op.kind]
