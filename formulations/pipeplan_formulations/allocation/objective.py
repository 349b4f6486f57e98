"""What an allocation is worth: (3) to (6) of the chain allocation problem, or the bottleneck, stage by stage."""

from typing import TYPE_CHECKING

from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.terms import behind, drained, loaded, own, services, step_on, two_phases

if TYPE_CHECKING:
    from pipeplan_formulations.allocation.instance import ChainAllocation


def evaluate(problem: "ChainAllocation", stages: Allocation) -> int:
    """The least T that (3) to (6), or the bottleneck, allow; the stages must be feasible."""
    hops = [*problem.hops(stages), (0, 0, 0)]
    usages, flights = problem.usages(stages), problem.flights(stages)
    head = least = service = ahead = 0
    peaks: dict[int, int] = {}  # the largest backward of each width so far
    for s, (place, extra) in enumerate(zip(stages, problem.recompute(stages), strict=True)):
        if extra is None:
            raise ValueError(f"stage {s}, {place}, does not fit whatever is recomputed")
        row = {name: problem.prefix[name][place.kind] for name in ("forward", "backward")}
        forward = int(row["forward"][place.end] - row["forward"][place.start])
        backward = int(row["backward"][place.end] - row["backward"][place.start])
        backward += sum(int(problem.forward[place.kind, layer]) for layer in extra)
        send, back, latency = hops[s]
        into = 0
        if s:
            node = problem.leaves_node(place.kind, place.kind, usages[s])
            into = int(problem.least_back[place.kind, node, place.start - 1])
        times = forward, backward, send, back, into
        if problem.objective == "bottleneck":
            step = loaded(problem.overlap, problem.share(place.width), *times[:3], into, problem.reduction(place))
            least = max(least, -(-step // problem.divisor))
            if problem.overlap != "none":
                least = max(least, problem.wire_shares[place.width] * max(send, back) // problem.divisor)
            continue
        many = problem.share(place.width)
        wait = (many - 1) * into if problem.overlap == "none" else 0
        least = max(least, head + own(problem.overlap, many, forward, backward, send) + wait)
        held = flights[s] if problem.alternating else many
        service = max(service, *services(problem.overlap, many, held, problem.wire_shares[place.width], *times))
        if problem.drains:
            peaks[place.width] = max(peaks.get(place.width, 0), backward)
            ahead = max(ahead, forward)
            for width, peak in peaks.items():
                left = behind(problem.last_batch, many, held, place.width) // width
                drain = drained(many, held, forward + backward, left, peak)
                service = max(service, two_phases(many, ahead, peak) if problem.phases else drain)
        head += step_on(problem.overlap, forward + backward, send, back, latency)
    if problem.objective == "bottleneck":
        return least
    return max(least, head + service) + problem.finish(stages[0])
