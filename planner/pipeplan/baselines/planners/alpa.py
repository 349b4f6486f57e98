"""Alpa's inter-operator programme: spans of layers and submeshes of devices, by the sum and the largest latency.

Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning" (OSDI 2022),
section 5.2, from memory. Stages are contiguous layers on submeshes of one node (1, 2, 4, … devices) or of whole nodes,
all devices are used, and B micro-batches take ::

    min  Σ t_i + (B − 1) max t_i        t_i: latency of a micro-batch on stage i

A programme over (devices left, layers left) minimises the sum for each cap on the largest latency; branch-and-bound
over the caps proves the least value (`sum_and_largest`). Transfers between stages do not count.

Alpa's intra-operator programme splits operators over a submesh. Here the devices of the cluster may be teams, whose
split is the same in all stages: this module is asked once for each split, and the least value counts. The rest of a
submesh are replicas, so t = (F + B + recomputation) / r + all-reduce / B. A stage keeps everything, or recomputes all
its layers where that does not fit. It holds ⌈R / r⌉ micro-batches, R being the devices from it to the last: with one
device per stage that is Alpa's number of stages. Alpa has devices of one kind; here stages take kinds one after the
other, in the order of the cluster and in the reverse one, with their times on the kind they get.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeplan.baselines.deadline import check_deadline
from pipeplan.baselines.partitioners.partitioner import NotApplicable, require_few_layers
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.baselines.planners.spans import Real, Spans
from pipeplan.baselines.planners.sum_and_largest import least
from pipeplan.core.cluster import Cluster, Device
from pipeplan.core.job import Job, Order
from pipeplan.core.model import Model
from pipeplan.costs.pricing import Prices

Stages = list[tuple[int, int, int]]
"""First layer, end and devices of each stage."""

MOST_SUMS = 10**9
"""Sums of one cap beyond which the programme is not started: some seconds."""


@dataclass(frozen=True)
class Submesh:
    """A stage's choices: its devices, and the latency of each span [a, b] on them; infinite where it does not fit."""

    devices: int
    latency: Real


def least_latency(
    choices: Sequence[Sequence[Submesh]], layers: int, micro_batches: int, below: float = np.inf
) -> tuple[float, Stages] | None:
    """Return the least Σ t + (B − 1) max t and its stages; None if no stages on all devices fit with less than below.

    Parameters
    ----------
    choices : sequence of sequences of Submesh
        For each number of devices used so far, the submeshes that the next stage may take.
    """

    def solve(cap: float) -> tuple[float, float, Stages] | None:
        table = _solve(choices, layers, cap)
        return (float(table[0][0]), *_stages(choices, table, layers, cap)) if np.isfinite(table[0][0]) else None

    each = {id(submesh): submesh.latency.ravel() for row in choices for submesh in row}
    return least(solve, np.concatenate([np.empty(0), *each.values()]), micro_batches - 1, below)


def _solve(choices: Sequence[Sequence[Submesh]], layers: int, cap: float) -> Real:
    """Return [u, a]: the least sum of latencies of layers a … on the devices after the first u."""
    total = len(choices)
    table = np.full((total + 1, layers + 1), np.inf)
    table[total, layers] = 0.0
    capped: dict[int, Real] = {}  # latencies within the cap, of submeshes that several numbers of devices have
    for used in range(total - 1, -1, -1):
        check_deadline()
        for submesh in choices[used]:
            behind = table[used + submesh.devices]
            if not np.isfinite(behind).any():
                continue
            if id(submesh) not in capped:
                capped[id(submesh)] = np.where(submesh.latency <= cap, submesh.latency, np.inf)
            np.minimum(table[used], (capped[id(submesh)] + behind).min(axis=1), out=table[used])
    return table


def _stages(choices: Sequence[Sequence[Submesh]], table: Real, layers: int, cap: float) -> tuple[float, Stages]:
    """Return the largest latency of a solution, and its stages."""
    found: Stages = []
    used = a = 0
    largest = 0.0
    while used < len(choices):
        options = [
            (np.where(row <= cap, row + table[used + submesh.devices], np.inf), row, submesh.devices)
            for submesh in choices[used]
            for row in (submesh.latency[a],)
        ]
        sums, row, devices = min(options, key=lambda option: float(option[0].min()))
        b = int(sums.argmin())
        largest = max(largest, float(row[b]))
        found.append((a, b, devices))
        used, a = used + devices, b
    assert a == layers
    return largest, found


def arrange(
    model: Model, cluster: Cluster, job: Job, micro_batch: int, below: float = np.inf
) -> tuple[Arrangement, ...]:
    """Return the programme's stages on all devices, with values below a limit in nanoseconds.

    Raises
    ------
    NotApplicable
        If no stages on all devices fit, or the programme would take more than `MOST_SUMS` for a cap.
    """
    layers = len(model.layers)
    require_few_layers(layers)
    if _sums(model, cluster) > MOST_SUMS:
        raise NotApplicable(
            f"Alpa's programme adds up {_sums(model, cluster):.0e} latencies of {layers} layers on "
            f"{len(cluster.devices)} devices for each cap, and is not begun beyond {MOST_SUMS:.0e}"
        )
    kinds: dict[str, list[Device]] = {}
    for device in cluster.devices:
        kinds.setdefault(device.kind.name, []).append(device)
    blocks, given = list(kinds.values()), job.order is Order.GIVEN
    if given and [device for block in blocks for device in block] != list(cluster.devices):
        raise NotApplicable("Alpa's programme takes devices of a kind together, which the given order does not")
    count = job.batch // micro_batch
    prices = Prices(model, cluster, job)
    found = []
    orders = [blocks] if given or len(blocks) == 1 else [blocks, blocks[::-1]]
    for order in orders if _floor(prices, cluster, micro_batch, count) < below else ():
        solved = least_latency(list(_choices(prices, order, micro_batch, count)), layers, count, below)
        if solved is not None:
            found.append(_arrangement(solved[1], order, in_order=given, value=solved[0]))
    if not found:
        raise NotApplicable(
            f"Alpa's programme has no stages that fit on all {len(cluster.devices)} devices in micro-batches of "
            f"{micro_batch}"
        )
    return tuple(found)


def _floor(prices: Prices, cluster: Cluster, size: int, count: int) -> float:
    """A value below which no stages are: with W the least work of a micro-batch, n devices have Σ t ≥ max t ≥ W / n."""
    kinds = {device.kind.name: device.kind for device in cluster.devices}.values()
    tables = [prices.table(kind, size) for kind in kinds]
    work = np.min([table.forward + table.backward for table in tables], axis=0).sum()
    return (1 - 1e-9) * float(work) * count / len(cluster.devices)


def _choices(prices: Prices, blocks: list[list[Device]], size: int, count: int) -> Iterator[list[Submesh]]:
    """Yield for each number of devices used so far the submeshes of the next stage."""
    left = sum(map(len, blocks))
    widths = [width for width in shapes(prices.cluster) if not prices.job.replicas or width in prices.job.replicas]
    for block in blocks:
        spans = {
            width: Spans(prices, tuple(block[:width]), size) for width in widths if width <= min(len(block), count)
        }
        known: dict[tuple[int, int], Submesh] = {}
        for place in range(len(block)):
            own: list[Submesh] = []
            for width in (width for width in spans if width <= len(block) - place):
                held = min(-(-left // width), -(-count // width))
                if (width, held) not in known:
                    known[width, held] = Submesh(width, latency(spans[width], width, held, count))
                own.append(known[width, held])
            yield own
            left -= 1


def shapes(cluster: Cluster) -> list[int]:
    """Return the numbers of devices of Alpa's submeshes: powers of two within a node, a node, and several whole nodes.

    Where nodes are unequal, the smallest one counts.
    """
    node, devices = min(len(node.kinds) for node in cluster.nodes), len(cluster.devices)
    powers = [2**k for k in range(node.bit_length()) if 2**k < node]
    return powers + [node * n for n in range(1, devices // node + 1)]


def latency(spans: Spans, replicas: int, held: int, count: int) -> Real:
    """Latency with so many micro-batches in flight: nothing recomputed, else everything, else infinite."""
    keeps, repeats = (need <= spans.room for need in spans.need(held))
    work = np.where(keeps, spans.work, np.where(repeats, spans.work + spans.repeated, np.inf))
    found: Real = np.where(spans.none, np.inf, work / replicas + spans.once / count)
    return found


def _arrangement(stages: Stages, blocks: list[list[Device]], in_order: bool, value: float) -> Arrangement:
    """Place the stages on the devices of their kinds, the widest first, as Alpa does, so that none divides a node."""
    devices: dict[int, tuple[int, ...]] = {}
    numbers = iter(range(len(stages)))
    for block in blocks:
        own, width = [], 0
        while width < len(block):
            own.append(next(numbers))
            width += stages[own[-1]][2]
        place = 0
        for number in own if in_order else sorted(own, key=lambda number: -stages[number][2]):
            taken = block[place : place + stages[number][2]]
            devices[number] = tuple(device.index for device in taken)
            place += len(taken)
    rows = tuple(devices[number] for number in range(len(stages)))
    return Arrangement((0, *(b for _, b, _ in stages)), rows, value)


def _sums(model: Model, cluster: Cluster) -> int:
    """Sums of latencies for one cap."""
    return len(cluster.devices) * len(shapes(cluster)) * len(model.layers) ** 2


PLANNER = BaselinePlanner(
    "alpa",
    "least sum of stage latencies and (B − 1) times the largest, on submeshes",
    "Alpa's inter-operator programme (OSDI 2022), with teams and replicas for its intra-operator plans; 1F1B",
    ("1f1b-sno", "1f1b-as"),
    arrange,
    lambda model, cluster: 2 * _sums(model, cluster),
    splits=True,
)
