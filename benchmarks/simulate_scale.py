"""How long the simulator takes for 64 devices and 512 micro-batches (65,600 actions and 64,512 transfers)."""

import time
from statistics import median

from pipeplan.cluster import Overlap
from pipeplan.pipeline import Pipeline, Stage, Transfer
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import simulate

DEVICES, MICRO_BATCHES, ROUNDS = 64, 512, 5


def pipeline(overlap: Overlap) -> Pipeline:
    """Slightly unequal stages, a transfer of a twentieth of a forward."""
    return Pipeline(
        stages=tuple(Stage(1000 + s % 7, 2000 + s % 5, update=10, held=100) for s in range(DEVICES)),
        placement=tuple((d,) for d in range(DEVICES)),
        transfers=tuple((Transfer(1, 50, 5, (f"down {s}",)),) for s in range(DEVICES - 1)),
        returns=tuple((Transfer(1, 50, 5, (f"up {s}",)),) for s in range(DEVICES - 1)),
        overlap=overlap,
        runtime=(0,) * DEVICES,
        limits=(2**62,) * DEVICES,
    )


def main() -> None:
    """Print the median for every family."""
    for name, family in FAMILIES.items():
        schedule = family.write((1,) * DEVICES, MICRO_BATCHES)
        line = pipeline(min(family.suits, key=str))
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            simulate(schedule, line)
            times.append(time.perf_counter() - start)
        print(f"{name:10} {median(times):6.2f} s (median of {ROUNDS})")


if __name__ == "__main__":
    main()
