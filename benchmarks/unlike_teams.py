"""What teams of unlike sizes gain over teams of one size: twelve pairs of a model and a cluster.

Each is solved twice, with and without ``unlike_teams``, in one process with one worker. Limits are processor seconds.
``-- [SECONDS] [NUMBER ...]``: the limit of each search (25), and the numbers of some pairs.
"""

import sys
import time
from typing import NamedTuple

from pipeplan import solve
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError, UndecidedError
from pipeplan.core.units import format_time
from pipeplan.io.load import load_cluster

SECONDS = 25.0
NETWORK = Link(12_500_000_000, 10_000)


def main() -> None:
    """Print a row for every pair."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    seconds, wanted = float(words[0]) if words else SECONDS, set(map(int, words[1:]))
    beginning = time.monotonic()
    time.monotonic = lambda: beginning + time.process_time()  # limits are processor seconds
    for number, row in enumerate(ROWS):
        if not wanted or number in wanted:
            alike, unlike = (_solved(row, seconds, wish) for wish in (False, True))
            print(f"{number:2} {row.model:14} {row.cluster:16} one size {alike}; unlike {unlike}", flush=True)


class Row(NamedTuple):
    """A question; its cluster is one of `CLUSTERS` or of ``datasets``."""

    model: str
    cluster: str
    batch: int
    teams: tuple[int, ...]


ROWS = (
    Row("llama3-8b", "6 of 24 GiB", 32, (1, 2, 4)),
    Row("llama3-8b", "8-v100-nvlink", 32, (1, 2, 4, 8)),
    Row("gpt2-xl", "6 of 24 GiB", 32, (1, 2, 4)),
    Row("gpt2-xl", "4-v100-pcie", 32, (1, 2, 4)),
    Row("gpt2-xl", "4-v100-4-p100", 32, (1, 2, 4)),
    Row("gpt2-xl", "2 x 3 of 24 GiB", 36, (1, 2, 3)),
    Row("bert-large", "2x4-v100-10gbit", 64, (1, 2, 4)),
    Row("llama3-8b", "5 and 3 of 24 GiB", 32, (1, 2, 4)),
    Row("llama3-8b-32k", "8 H100", 8, (1, 2, 4, 8)),
    Row("llama3-8b", "6 H100", 30, (1, 2, 4)),
    Row("gpt2-small", "2x2-v100-10gbit", 32, (1, 2)),
    Row("gpt3-175b", "64-h100", 192, (1, 2, 4, 8)),
)


def _nodes(name: str, kind: DeviceKind, counts: tuple[int, ...], bandwidth: int) -> Cluster:
    nodes = tuple(Node((kind.name,) * count, Link(bandwidth, 3_000)) for count in counts)
    return Cluster(name, {kind.name: kind}, nodes, NETWORK if len(counts) > 1 else None, Overlap.COPY)


PEAK = 312 * 10**12
SMALL = DeviceKind(
    "gpu",
    memory=24 * 2**30,
    peak=dict.fromkeys(("float32", "bfloat16", "float16"), PEAK),
    bandwidth=1_500_000_000_000,
    efficiency=0.5,
)
H100 = load_cluster("64-h100").kinds["h100-80gb"]
CLUSTERS = {
    "6 of 24 GiB": _nodes("6 of 24 GiB", SMALL, (6,), 150_000_000_000),
    "2 x 3 of 24 GiB": _nodes("2 x 3 of 24 GiB", SMALL, (3, 3), 150_000_000_000),
    "5 and 3 of 24 GiB": _nodes("5 and 3 of 24 GiB", SMALL, (5, 3), 150_000_000_000),
    "8 H100": _nodes("8 H100", H100, (8,), 450_000_000_000),
    "6 H100": _nodes("6 H100", H100, (6,), 450_000_000_000),
}


def _solved(row: Row, seconds: float, unlike: bool) -> str:
    """The step time, the bound, and the processor seconds of a search; or why there is none."""
    began = time.process_time()
    how = {"teams": row.teams, "unlike_teams": unlike, "time_limit": seconds, "workers": 1}
    try:
        found = solve(row.model, CLUSTERS.get(row.cluster, row.cluster), row.batch, **how)  # type: ignore[arg-type]
    except (InfeasibleError, UndecidedError) as error:
        return type(error).__name__
    took = time.process_time() - began
    return f"{format_time(found.value)} (bound {format_time(found.bound)}, teams of {found.plan.teams}, {took:.0f} s)"


if __name__ == "__main__":
    main()
