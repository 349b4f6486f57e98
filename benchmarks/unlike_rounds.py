"""Rounds of several stages per device that are cut alike, and that differ by a layer: the best steps of a chain.

Like layers, and a head that takes as long as some of them, on devices of one node; no replicas, 20 processor seconds a
question. Beside them one stage per device, of whole and of split backwards.
"""

import time
from math import inf

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.core.units import format_time
from pipeplan.search.result import Result
from pipeplan.solve import solve

ROWS = ((28, 4, 16, 1), (40, 8, 16, 1), (20, 8, 16, 1), (32, 6, 12, 3))
"""Layers, devices, samples of a step, and layers that the head counts for."""
FAMILIES = (
    ("1f1b", 1),
    ("zb-h2", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    ("interleaved", 4),
    ("zb-v", 2),
    ("dualpipe-v", 2),
)
"""Families, each with its stages of a device."""
LAYER, BYTES, LIMIT = 3e6, 8 * 2**20, 20


def chain(layers: int, head: int) -> Model:
    """Model of like layers whose last one takes so many times as long."""
    times = [LAYER] * (layers - 1) + [LAYER * head]
    costs = [LayerCost(int(f), int(2 * f), int(f), int(f), saved=BYTES, output=BYTES) for f in times]
    kinds = ["block"] * (layers - 1) + ["block" if head == 1 else "head"]
    names = [Layer(f"b{i}", BYTES, (f"b{i - 1}",) if i else (), kind=kind) for i, kind in enumerate(kinds)]
    made_up = Provenance("imported", "made up for a benchmark")
    return Model("chain", tuple(names), (Profile("fast", 1, tuple(costs), made_up),), "float16")


def asked(row: tuple[int, int, int, int], family: str, chunks: int, unlike: bool) -> tuple[Result | None, float]:
    """The answer, and the processor seconds that it took."""
    layers, devices, batch, head = row
    kind, node = DeviceKind("fast", memory=80 * 2**30, source="made up"), Node(("fast",) * devices, Link(10**11, 3_000))
    cluster = Cluster("a node", {"fast": kind}, (node,), Link(10**9, 10_000), Overlap.COPY)
    job = Job(batch, optimizer="sgd", schedules=(family,), chunks=(chunks,), replicas=(1,), unlike_rounds=unlike)
    start = time.process_time()
    try:
        return solve(chain(layers, head), cluster, job=job, time_limit=LIMIT, workers=1), time.process_time() - start
    except InfeasibleError:
        return None, time.process_time() - start


def main() -> None:
    """Print the table."""
    start = time.monotonic()
    time.monotonic = lambda: start + time.process_time()  # limits in processor seconds
    print("| layers x devices, head | stages of a device | family | alike | unlike | gain | seconds |")
    print("|---|---|---|---|---|---|---|")
    for row in ROWS:
        for family, chunks in FAMILIES:
            found = [asked(row, family, chunks, unlike) for unlike in (False, True)[:chunks]]
            shown = [f"{format_time(own.value)} ({own.gap:.1%})" if own else "none fits" for own, _ in found]
            values = [own.value if own else inf for own, _ in found]
            gain = f"{1 - values[-1] / values[0]:.1%}" if values[-1] < values[0] < inf else ""
            spent = " / ".join(f"{seconds:.1f}" for _, seconds in found)
            first = f"{row[0]} x {row[1]}, {row[3]} | {chunks} | {family} | {shown[0]}"
            print(f"| {first} | {shown[1] if chunks > 1 else ''} | {gain} | {spent} |", flush=True)


if __name__ == "__main__":
    main()
