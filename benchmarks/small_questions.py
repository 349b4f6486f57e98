"""Small questions: chains of 4 to 6 unlike layers on 7 to 10 devices of one or two kinds, in processor seconds.

Each row is a size, a kind of overlap and a memory limit, with one chain per seed; default options. The column
``unlisted`` solves the same without lists of shapes and partitions: by aggregate nodes, dynamic programmes and CP-SAT.
``-- [seeds=N] [unlisted=0]`` selects the number of seeds and leaves that column out.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from unittest import mock

from benchmarks.unlike_layers import chain, two_kinds

from pipeplan.core.cluster import Cluster, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.solve import solve
from pipeplan_formulations.common.solvers import cp_model
from pipeplan_formulations.partition import listing

SIZES = ((4, 7, 2), (5, 8, 2), (6, 8, 1), (6, 10, 1), (6, 10, 2))
"""Layers, devices and kinds of device."""
GIB = 2**30


def cluster(devices: int, kinds: int, overlap: Overlap) -> Cluster:
    """Nodes of at most four devices each; of two kinds half are slow."""
    half = devices // 2 if kinds == 2 else 0
    known = two_kinds(8).kinds
    links = {"fast": Link(100 * 10**9, 3_000), "slow": Link(25 * 10**9, 5_000)}
    nodes = [
        Node((name,) * min(4, count - taken), links[name])
        for name, count in (("fast", devices - half), ("slow", half))
        for taken in range(0, count, 4)
    ]
    return Cluster(f"{devices} devices", known, tuple(nodes), Link(12_500_000_000, 10_000), overlap)


def main() -> None:
    """Print the table."""
    options = dict(word.split("=") for word in sys.argv if "=" in word)
    seeds, both = int(options.get("seeds", 10)), options.get("unlisted", "1") != "0"
    cp_model()  # imports are not counted
    print(f"{'layers x devices':16} {'kinds':>5} {'overlap':>7} {'memory':>9} {'median':>8} {'worst':>8}"
          f"{'  unlisted: median    worst' if both else ''}")  # fmt: skip
    for layers, devices, kinds in SIZES:
        for overlap in (Overlap.COPY, Overlap.NONE):
            for memory in (None, 1.6):
                job = Job(batch=4 * devices, optimizer="sgd", memory=None if memory is None else int(memory * GIB))
                ways = [_seconds(chain(layers, seed), cluster(devices, kinds, overlap), job) for seed in range(seeds)]
                row = f"{layers:4} x {devices:<9} {kinds:5} {overlap:>7} {f'{memory} GiB' if memory else 'enough':>9}"
                row += f" {statistics.median(ways):6.2f} s {max(ways):6.2f} s"
                if both:
                    with unlisted():
                        ways = [
                            _seconds(chain(layers, seed), cluster(devices, kinds, overlap), job, proved=False)
                            for seed in range(seeds)
                        ]
                    row += f"           {statistics.median(ways):6.2f} s {max(ways):6.2f} s"
                print(row, flush=True)


@contextmanager
def unlisted() -> Iterator[None]:
    """Without lists of shapes and partitions."""
    space = import_module("pipeplan.search.space.space")
    with mock.patch.object(space, "PAIRS", 0), mock.patch.object(listing, "MOST", 0):
        yield


def _seconds(model: Model, where: Cluster, job: Job, proved: bool = True) -> float:
    """Processor seconds to a proof; without ``proved`` 0.1 % may be left, as bounds count one base for all buckets."""
    began = time.process_time()
    try:
        result = solve(model, where, job=job)
        assert result.gap <= (0 if proved else 0.001), f"no proof: {result.bound} to {result.value}"
    except InfeasibleError:
        pass
    return time.process_time() - began


if __name__ == "__main__":
    main()
