"""Lower bound on a step with full memory: the wait for the first backwards, and the last round trip.

::

    device 0   F0 F1 F2 F3 ·· ·· ·· I0 W0 F4 I1 W1 F5 … F9 ·· ·· ·· I9 W9
                           └ wait ┘ work that must all be        └ round trip of F9 ┘
                                    done before F9

Heads of operations come from the chain of a micro-batch, the order of those of one kind, and `Admission`: F_s(i) starts
after the end of I_s(i − K_s), and of the W that i needs in any case. `windows` also packs work around every operation.
Here only the last forward of each stage is packed, so many micro-batches cost little.
"""

from pipeplan_formulations.schedule.bounds import Item, jackson, packed
from pipeplan_formulations.schedule.instance import Kind, PipelineSchedule
from pipeplan_formulations.schedule.long_steps.holding import reach
from pipeplan_formulations.schedule.precedence import Admission

Heads = dict[Kind, list[list[int]]]
"""Least start of every micro-batch, by kind and stage."""


def drain_bound(problem: PipelineSchedule) -> int:
    """Lower bound on the makespan of a possible problem: by work and by the last round trip.

    *Work.* step ≥ Jackson's rule for each device, with the heads of this file and the tails of `reach`.

    *Last round trip.* step ≥ start of F_s(M − 1) + round trip of s + tail_s. When the last forward of stage s starts,
    all other forwards of the stage have ended, and for one of the `Admission.choices` (n, k) its first n I and k W, or
    more. All of them run one after the other on one device, each after its head, so the start is at least `packed`. As
    I_s(n − 1) has ended, the start is also at least a round trip after the start of F_s(n − 1).

    A forward F_s(i) before the last is bounded by sums alone. For one of its choices (n, k), n > 0, these run
    after the head of I_s(0): n I, k W, and all forwards except the K_s that may precede the end of I_s(0).
    """
    admissions = [Admission(problem, s) for s in range(problem.stages)]
    heads, along = _heads(problem, admissions), reach(problem)
    after: dict[Kind, tuple[int, ...]] = {
        "F": tuple(a - f + b for a, f, b in zip(along.round_trip, problem.forward, along.tail, strict=True)),
        "I": along.tail,
        "W": problem.ending,
    }
    bound = 0
    for device in range(problem.devices):
        items = [(heads[k][s][i], problem.time[k][s], after[k][s]) for k, s, i in problem.operations(device)]
        bound = max(bound, jackson(items))
    for s, admission in enumerate(admissions):
        start = _last_forward(problem, heads, along.round_trip[s], s, admission)
        bound = max(bound, start + along.round_trip[s] + along.tail[s])
    return bound


def _heads(problem: PipelineSchedule, admissions: list[Admission]) -> Heads:
    """Heads of all operations, micro-batch by micro-batch: forwards along the chain, then backwards."""
    last, m = problem.stages - 1, problem.micro_batches
    # done[kind][stage]: earliest ends of the micro-batches so far.
    done: dict[Kind, list[list[int]]] = {k: [[] for _ in problem.device] for k in ("F", "I", "W")}
    for i in range(m):
        for s, admission in enumerate(admissions):
            begin = done["F"][s][-1] if i else 0
            if s:
                begin = max(begin, done["F"][s - 1][i] + problem.lag[s - 1])
            if i >= admission.most:
                begin = max(begin, done["I"][s][i - admission.most])
            weights = admission.weights(i, i)
            if weights:
                begin = max(begin, done["W"][s][weights - 1])
            done["F"][s].append(begin + problem.forward[s])
        for s in reversed(range(problem.stages)):
            begin = max(done["F"][s][i], done["I"][s][-1] if i else 0)
            if s < last:
                begin = max(begin, done["I"][s + 1][i] + problem.lag_back[s])
            done["I"][s].append(begin + problem.backward[s])
            begin = max(done["I"][s][i], done["W"][s][-1] if i else 0)
            done["W"][s].append(begin + problem.weight[s])
    return {
        kind: [[end - problem.time[kind][s] for end in row] for s, row in enumerate(rows)]
        for kind, rows in done.items()
    }


def _last_forward(problem: PipelineSchedule, heads: Heads, trip: int, stage: int, admission: Admission) -> int:
    """Lower bound on the start of F(M − 1); ``trip`` is the stage's round trip."""
    m = problem.micro_batches

    def items(kind: Kind, count: int) -> list[Item]:
        return [(head, problem.time[kind][stage]) for head in heads[kind][stage][:count]]

    def after(n: int, k: int) -> int:
        least = packed([*forwards, *items("I", n), *items("W", k)])
        return max(least, _forward(problem, heads, stage, n - 1, admission) + trip) if n else least

    forwards = items("F", m - 1)
    return max(heads["F"][stage][m - 1], min(after(n, k) for n, k in admission.choices(m - 1)))


def _forward(problem: PipelineSchedule, heads: Heads, stage: int, i: int, admission: Admission) -> int:
    """Lower bound on the start of F(i)."""
    head = heads["F"][stage][i]
    if i < admission.most:
        return head
    first = heads["I"][stage][0] + (i - admission.most) * problem.forward[stage]
    sums = (n * problem.backward[stage] + k * problem.weight[stage] for n, k in admission.choices(i))
    return max(head, first + min(sums))
