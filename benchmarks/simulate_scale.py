"""Run time of the simulator for 64 devices, and for 4,096 of them as 64 stages of 64 replicas.

The first has 512 micro-batches (65,600 actions, 64,512 transfers), the second 1,536 (204,800 and 193,536), once with a
link resource for every pair of devices and once with a network card for every eight devices, which their transfers
share. Processor time is measured, so that other work on the machine counts less. The parts of a schedule that do not
depend on times are kept between rounds, as in a search.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import lcm
from statistics import median

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.schedules import FAMILIES
from pipeplan.search.path_cuts import find_path_cut
from pipeplan.simulate import makespan, simulate

STAGES, REPLICAS, ROUNDS = 64, 64, 3
DEVICES_PER_CARD = 8


def pipeline(overlap: Overlap, replicas: int = 1, cards: bool = False) -> Pipeline:
    """Pipeline of slightly unequal stages, with transfers of a twentieth of a forward."""
    placement = tuple(tuple(range(s * replicas, (s + 1) * replicas)) for s in range(STAGES))

    def resources(a: int, b: int) -> tuple[str, ...]:
        if not cards:
            return (f"{a} to {b}",)
        return (f"card {a // DEVICES_PER_CARD} out", f"card {b // DEVICES_PER_CARD} in")

    def way(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[Transfer, ...]:
        period = lcm(len(source), len(target))
        return tuple(
            Transfer(1, 50, 5, resources(source[m % len(source)], target[m % len(target)])) for m in range(period)
        )

    return Pipeline(
        stages=tuple(Stage(1000 + s % 7, 2000 + s % 5, update=10, held=100, reduce=500) for s in range(STAGES)),
        placement=placement,
        transfers=tuple(way(a, b) for a, b in pairwise(placement)),
        returns=tuple(way(b, a) for a, b in pairwise(placement)),
        overlap=overlap,
        runtime=(0,) * STAGES * replicas,
        limits=(2**62,) * STAGES * replicas,
    )


def seconds(call: Callable[[], object]) -> float:
    """Median processor seconds of a call over the rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return median(times)


def main() -> None:
    """Print the medians for every family: a whole time line, only the makespan, only a path cut."""
    for replicas, micro_batches, cards in ((1, 512, False), (REPLICAS, 1536, False), (REPLICAS, 1536, True)):
        shared = ", shared cards" if cards else ""
        print(f"{STAGES} stages of {replicas} replicas, {micro_batches} micro-batches{shared}")
        print(f"  {'':10} {'simulate':>10} {'makespan':>10} {'path cut':>10}   (s, median of {ROUNDS})")
        for name, family in FAMILIES.items():
            schedule = family.write((replicas,) * STAGES, micro_batches)
            line = pipeline(min(family.suits, key=str), replicas, cards)
            calls = (partial(simulate, schedule, line), partial(makespan, schedule, line))
            row = [*(seconds(call) for call in calls), seconds(partial(find_path_cut, schedule, line))]
            print(f"  {name:10}" + "".join(f" {taken:10.2f}" for taken in row))


if __name__ == "__main__":
    main()
