"""Tables: what loss tolerance adds to fast repair, in an incast, on single paths, by classes, and for a plan's sums.

Beside every figure of tolerated loss stand two lossless controls with fast repair: all bytes, and as many left out
beforehand as the loss may take. Means over seeds, with intervals of 95 %; a few minutes of one core.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil, sqrt
from statistics import mean, stdev

from benchmarks.packets.simulator import Fabric, Message, Outcome, Repair, simulate
from benchmarks.packets.workloads import exchange, halves, incast, permutation, ring, sums_of

from pipeplan import Plan, load_cluster, load_model, solve

SEEDS, STUDENT = range(8), 2.365
"""Seeds, and Student's t of so many."""
DATA_CENTRE = Fabric(leaves=9, hosts=16, spines=4, rate=12_500_000_000, delay=500, packet=1500, thresholds=(200_000,))
TIMEOUT, SERVERS, BYTES, LOST = 10_000_000, 2, 250_000, 0.1
MODEL, NODES, BATCH = "resnet-50", 8, 256


@dataclass(frozen=True)
class Way:
    """What becomes of gradients: ``left`` out beforehand, ``tolerated``, or what is late at a deadline (in ideals).

    ``buffer`` is the part of its threshold from which on the last class is dropped.
    """

    fast: bool = True
    left: float = 0.0
    tolerated: float = 0.0
    deadline: float = 0.0
    buffer: float = 1.0

    def run(self, fabric: Fabric, messages: Sequence[Message], seed: int, ideal: int = 0) -> Outcome:
        """Simulate messages so; fast repair takes a round trip."""
        late, tolerated = round(self.deadline * ideal) or None, self.tolerated
        fabric = replace(fabric, thresholds=(*fabric.thresholds[:-1], round(self.buffer * fabric.thresholds[-1])))
        sent = [
            replace(m, size=ceil(m.size * (1 - self.left)), tolerated=tolerated, deadline=late) if m.gradients else m
            for m in messages
        ]
        return simulate(fabric, sent, Repair(self.fast, fabric.round_trip if self.fast else TIMEOUT), seed)


FAST = {
    "fast repair": Way(),
    "fast repair, 10 % left out": Way(left=LOST),
    "fast repair, 10 % tolerated": Way(tolerated=LOST),
}
WAYS = {
    "slow repair": Way(fast=False),
    "slow repair, a sixteenth sent": Way(fast=False, left=15 / 16),
    "slow repair, 10 % tolerated": Way(fast=False, tolerated=LOST),
    "slow repair, on at the ideal": Way(fast=False, deadline=1.0),
    **FAST,
    "fast repair, on at 0.9 of the ideal": Way(deadline=0.9),
}
SMALL = {
    "fast repair": Way(),
    "20 % of small ones left out": Way(left=2 * LOST),
    "20 % of small ones tolerated": Way(tolerated=2 * LOST),
    "the same, dropped from half a buffer on": Way(tolerated=2 * LOST, buffer=0.5),
}


def print_table(name: str, columns: str, ways: Mapping[str, Way], row: Callable[[Way, int], Sequence[float]]) -> None:
    """Print the mean of each column over seeds, and its interval; a row is a function of way and seed."""
    print(f"\n{name:40}" + "".join(f"{column:>18}" for column in columns.split("; ")))
    for label, way in ways.items():
        drawn, half = zip(*(row(way, seed) for seed in SEEDS), strict=True), STUDENT / sqrt(len(SEEDS))
        cells = [f"{mean(column):.3f} ± {half * stdev(column):.3f}" for column in drawn]
        print(f"{label:40}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def flows(fabric: Fabric, pattern: Callable[[int], list[Message]], way: Way, seed: int) -> Sequence[float]:
    """Return mean and 99th percentile of messages' times in ideals, the share used, and that dropped of each class."""
    messages = pattern(seed)
    ideal = fabric.wire(sum(m.size for m in messages if m.target == messages[0].target))
    outcome = way.run(fabric, messages, seed, ideal)
    times = sorted(end - begin for begin, end in zip(outcome.begun, outcome.done, strict=True))
    offered = [sum(m.size for m in messages if m.priority == level) for level, _ in enumerate(outcome.dropped)]
    dropped = [lost / size for lost, size in zip(outcome.dropped, offered, strict=True)]
    return mean(times) / ideal, times[ceil(0.99 * len(times)) - 1] / ideal, used(outcome, messages), *dropped


def used(outcome: Outcome, messages: Sequence[Message]) -> float:
    """Return the share of gradients that are used of those that may be lost."""
    pairs = [(m.size, used) for m, used in zip(messages, outcome.used, strict=True) if m.gradients]
    return sum(used for _, used in pairs) / sum(size for size, _ in pairs)


def data_parallel() -> tuple[Plan, Fabric]:
    """Return a plan with sums front layers first, on nodes of one device, and their network with two nodes more."""
    cluster = load_cluster("2x4-v100-10gbit")
    nodes = (replace(cluster.nodes[0], kinds=cluster.nodes[0].kinds[:1]),) * NODES
    cluster = replace(cluster, nodes=nodes, name=f"{NODES} nodes")
    found = solve(MODEL, cluster, BATCH, depths=1, replicas=NODES, zero=0, objective="period", front_first=True)
    link = cluster.network
    assert found.front_first and found.front_first.plan and link and link.bandwidth
    delay, leaves = link.latency // 4, -(-(NODES + SERVERS) // 4)
    return found.front_first.plan, Fabric(leaves, 4, 4, link.bandwidth, delay, 9000, (200_000,) * 8)


def waited(
    plan: Plan, fabric: Fabric, sums: Callable[[Message, int], list[Message]], way: Way, seed: int
) -> Sequence[float]:
    """Return milliseconds that the next step waits for sums and that they go on, and shares used and dropped."""
    messages, needed = list[Message](), list[int]()
    for like, when in sums_of(plan, load_model(MODEL), len(fabric.thresholds)):
        messages += sums(like, len(messages))
        needed += [when] * (len(messages) - len(needed))
    outcome, end = way.run(fabric, messages, seed), plan.stages[0].backward
    late = max(0, *(done - when for done, when in zip(outcome.done, needed, strict=True)))
    dropped = sum(outcome.dropped) / sum(m.size for m in messages)
    return late / 1e6, (max(outcome.done) - end) / 1e6, used(outcome, messages), dropped


def main() -> None:
    """Print all tables."""
    crowd = partial(incast, DATA_CENTRE.size, SERVERS, BYTES)
    circle = partial(permutation, DATA_CENTRE.size, 4 * BYTES)
    columns = "mean / ideal; p99 / ideal; used; dropped"
    for pattern, sprayed in product((crowd, circle), (False, True)):
        name = f"{'incast' if pattern is crowd else 'permutation'}, {'sprayed' if sprayed else 'hashed'} paths"
        ways = FAST if sprayed or pattern is circle else WAYS
        print_table(name, columns, ways, partial(flows, replace(DATA_CENTRE, sprayed=sprayed), pattern))
    two = replace(DATA_CENTRE, thresholds=DATA_CENTRE.thresholds * 2)
    columns = "mean / ideal; p99 / ideal; small used; large dropped; small dropped"
    print_table("incast, half of it small", columns, SMALL, partial(flows, two, lambda seed: halves(crowd(seed))))
    plan, fabric = data_parallel()
    ranks, owners = range(NODES), range(NODES, NODES + SERVERS)
    priced, behind = plan.priority[0].exposed / 1e6, plan.priority[0].behind / 1e6
    print(f"\n{plan.headline}\npriced as a ring: the next step waits {priced:.1f} ms, sums go on for {behind:.1f} ms")
    direct, server = partial(exchange, ranks, ranks), partial(exchange, ranks, owners)
    ways = {"slow repair": Way(fast=False), **FAST}
    for name, sums in (("ring", partial(ring, ranks)), ("direct", direct), ("parameter server, 2 nodes", server)):
        print_table(name, "step waits, ms; sums end, ms; used; dropped", ways, partial(waited, plan, fabric, sums))
