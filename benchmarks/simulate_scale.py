"""Run time of the simulator, and of the step times that need no action lists.

The simulator times 64 devices, and 4,096 of them as 64 stages of 64 replicas. The first has 512 micro-batches (65,600
actions, 64,512 transfers), the second 1,536 (204,800 and 193,536), once with a link resource for every pair of devices
and once with a network card for every eight devices, which their transfers share. The parts of a schedule that do not
depend on times are kept between rounds, as in a search.

The second table compares, for stages that differ by up to 10 %, a simulation of lists that are written for it, nothing
kept, with `pipeplan.simulate.recurrence`: the exact step time, and the lower bound without waits for shared cards. The
third has the recurrence alone on 1,024 devices.

Processor time is measured, so that other work on the machine counts less.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, cycle, islice, pairwise
from math import lcm
from random import Random
from statistics import median

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.schedules import FAMILIES
from pipeplan.search.path_cuts import find_path_cut
from pipeplan.simulate import makespan, simulate
from pipeplan.simulate.recurrence import least_step_time, step_time
from pipeplan.simulate.structure import _kept

STAGES, REPLICAS, ROUNDS = 64, 64, 3
DEVICES_PER_CARD = 8
CASES = (
    ("gpipe", (1,), Overlap.COPY, False),
    ("1f1b-sno", (1,), Overlap.COPY, False),
    ("1f1b-sno", (1,), Overlap.NONE, False),
    ("1f1b-as", (1,), Overlap.STREAM, False),
    ("1f1b-so", (1,), Overlap.COPY, False),
    ("1f1b-so", (1, 2, 4, 2), Overlap.COPY, False),
    ("1f1b-so", (1, 2, 3), Overlap.COPY, False),
    ("gpipe", (1,), Overlap.COPY, True),
    ("1f1b-sno", (1,), Overlap.COPY, True),
    ("1f1b-so", (1,), Overlap.COPY, True),
    ("1f1b-so", (1, 2, 4, 2), Overlap.COPY, True),
)
"""Family, replicas of the stages in turn, overlap, and whether nodes of eight devices share cards."""


def pipeline(overlap: Overlap, replicas: int = 1, cards: bool = False) -> Pipeline:
    """Pipeline of slightly unequal stages, with transfers of a twentieth of a forward."""

    def transfer(a: int, b: int) -> Transfer:
        resources = (f"card {a // DEVICES_PER_CARD} out", f"card {b // DEVICES_PER_CARD} in")
        return Transfer(1, 50, 5, resources if cards else (f"{a} to {b}",))

    stages = tuple(Stage(1000 + s % 7, 2000 + s % 5, update=10, held=100, reduce=500) for s in range(STAGES))
    return _pipeline(stages, (replicas,) * STAGES, transfer, overlap)


def uneven(overlap: Overlap, widths: Sequence[int], cards: bool) -> Pipeline:
    """Pipeline of stages that differ by up to 10 %, with transfers of a fifth of a forward between nodes of eight.

    Inside a node they take a quarter of that. Without ``cards`` there is one node.
    """
    random = Random(0)

    def transfer(a: int, b: int) -> Transfer:
        if cards and a // DEVICES_PER_CARD != b // DEVICES_PER_CARD:
            return Transfer(1, 2000, 50, (f"card {a // DEVICES_PER_CARD} out", f"card {b // DEVICES_PER_CARD} in"))
        return Transfer(1, 500, 25, (f"{a} to {b}",))

    stages = (
        Stage(
            int(10_000 * r * random.uniform(1, 1.1)), int(20_000 * r * random.uniform(1, 1.1)), update=500, reduce=700
        )
        for r in widths
    )
    return _pipeline(tuple(stages), widths, transfer, overlap)


def _pipeline(
    stages: tuple[Stage, ...], widths: Sequence[int], transfer: Callable[[int, int], Transfer], overlap: Overlap
) -> Pipeline:
    placement = tuple(tuple(range(a, b)) for a, b in pairwise(accumulate(widths, initial=0)))

    def way(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[Transfer, ...]:
        period = lcm(len(source), len(target))
        return tuple(transfer(source[m % len(source)], target[m % len(target)]) for m in range(period))

    return Pipeline(
        stages=stages,
        placement=placement,
        transfers=tuple(way(a, b) for a, b in pairwise(placement)),
        returns=tuple(way(b, a) for a, b in pairwise(placement)),
        overlap=overlap,
        runtime=(0,) * sum(widths),
        limits=(2**62,) * sum(widths),
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
    """Print the medians for every family: a time line, only the makespan, only a path cut; then the recurrence."""
    for replicas, micro_batches, cards in ((1, 512, False), (REPLICAS, 1536, False), (REPLICAS, 1536, True)):
        shared = ", shared cards" if cards else ""
        print(f"{STAGES} stages of {replicas} replicas, {micro_batches} micro-batches{shared}")
        print(f"  {'':10} {'simulate':>10} {'makespan':>10} {'path cut':>10}   (s, median of {ROUNDS})")
        for name, family in FAMILIES.items():
            schedule = family.write((replicas,) * STAGES, micro_batches)
            line = pipeline(min(family.suits, key=str), replicas, cards)
            calls = (partial(simulate, schedule, line), partial(makespan, schedule, line))
            row = [*(seconds(call) for call in calls), seconds(partial(find_path_cut, schedule, line))]
            print(f"  {name:10}" + "".join(f" {taken:10.2f}" for taken in row), flush=True)
    print(f"\nmilliseconds, median of {ROUNDS}, and how many times as fast as the simulation")
    print(f"  {'':32} {'simulation':>11} {'exact':>16} {'lower bound':>16}  stages x micro-batches")
    for stages, micro_batches in ((16, 128), (STAGES, 512), (STAGES, 2048)):
        for name, widths, overlap, cards in CASES:
            _compare(name, [*islice(cycle(widths), stages)], micro_batches, overlap, cards)
    for stages, replicas in ((64, 16), (1024, 1)):
        for name in ("gpipe", "1f1b-sno", "1f1b-so"):
            _compare(name, [replicas] * stages, 8192, Overlap.COPY, cards=False, simulated=False)
    for name in ("gpipe", "1f1b-sno", "1f1b-so"):
        _compare(name, [16] * 64, 8192, Overlap.COPY, cards=True, simulated=False)


def _compare(
    name: str, widths: list[int], micro_batches: int, overlap: Overlap, cards: bool, simulated: bool = True
) -> None:
    """Print one row."""
    family, line = FAMILIES[name], uneven(overlap, widths, cards)
    in_flight = family.in_flight(widths, micro_batches)

    def simulation() -> int:
        _kept.clear()
        return makespan(family.write(widths, micro_batches), line)

    exact, bound = (seconds(partial(call, line, micro_batches, in_flight)) for call in (step_time, least_step_time))
    whole = seconds(simulation) if simulated else 0.0
    shape = "-".join(map(str, dict.fromkeys(widths)))
    what = f"{name}, {overlap.value}, replicas {shape}{', cards' if cards else ''}"
    times = "".join(
        f" {1e3 * taken:8.1f}" + (f" ({whole / taken:4.0f})" if whole else " " * 7) for taken in (exact, bound)
    )
    print(f"  {what:44} {1e3 * whole:8.0f} {times}  {len(widths)} x {micro_batches}", flush=True)


if __name__ == "__main__":
    main()
