"""Alpa's inter-operator programme: spans of layers and submeshes of devices, by the sum and the largest latency.

Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning" (OSDI 2022),
section 5.2, from memory. Stages are contiguous layers on submeshes of one node (1, 2, 4, … devices) or of whole nodes,
all devices are used, and B micro-batches take ::

    min  Σ t_i + (B − 1) max t_i        t_i: latency of a micro-batch on stage i

For each cap on the largest latency, a programme over (devices left, layers left) minimises the sum. Caps fall from
the largest latency of one solution to below it, by `STEPS` at least: the original enumerates all of them. Transfers
between stages do not count.

What differs from the original: a stage's devices are replicas, so t = (F + B + recomputation) / r + all-reduce / B,
where Alpa's intra-operator programme would also split operators. A stage keeps everything, or recomputes all its layers
where that does not fit. It holds ⌈R / r⌉ micro-batches, R being the devices from it to the last: with one device per
stage that is Alpa's number of stages. Alpa has devices of one kind; here stages take kinds one after the other, in the
order of the cluster and in the reverse one, with their times on the kind they get.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan.baselines.partitioners.partitioner import NotApplicable, require_few_layers
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.core.cluster import Cluster, Device
from pipeplan.core.job import Job, Order
from pipeplan.core.model import Model
from pipeplan.costs.chain import UNLIMITED, Array
from pipeplan.costs.pricing import Prices

Real = NDArray[np.float64]
Stages = list[tuple[int, int, int]]
"""First layer, end and devices of each stage."""

STEPS = (0.04, 0.004)
"""Least relative distances of two caps: first over all caps, then around the best of them."""
MOST_SUMS = 10**9
"""Sums of one cap beyond which the programme is not started: some seconds."""


@dataclass(frozen=True)
class Submesh:
    """A stage's choices: its devices, and the latency of each span [a, b] on them; infinite where it does not fit."""

    devices: int
    latency: Real


def least_latency(
    choices: Sequence[Sequence[Submesh]], layers: int, micro_batches: int, steps: Sequence[float] = STEPS
) -> tuple[float, Stages] | None:
    """Return the least Σ t + (B − 1) max t and its stages; None if no stages on all devices fit.

    Parameters
    ----------
    choices : sequence of sequences of Submesh
        For each number of devices used so far, the submeshes that the next stage may take.
    steps : sequence of float
        Least relative distances of two caps, one search after the other around the best so far; 0 for all of them.
    """
    lowest = float(_solve(choices, layers, np.inf, largest=True)[0][0])
    best: tuple[float, Stages] | None = None
    above, below = np.inf, lowest  # the caps between which the next search lies
    for step in steps:
        cap, before = above, above
        while np.isfinite(lowest) and cap >= below:
            table = _solve(choices, layers, cap)
            stages, largest = _stages(choices, table, layers, cap)
            value = float(table[0][0]) + (micro_batches - 1) * largest
            if best is None or value < best[0]:
                best = value, stages
                above, best_largest = before, largest
            # a lower cap has no less a sum, and no largest latency below the lowest
            if largest <= lowest or table[0][0] + (micro_batches - 1) * lowest >= best[0]:
                break
            before = float(np.nextafter(largest, 0))
            cap = max(min(largest * (1 - step), before), lowest)
        if best is not None:
            below = max(best_largest * (1 - step), lowest)
    return best


def _solve(choices: Sequence[Sequence[Submesh]], layers: int, cap: float, largest: bool = False) -> Real:
    """Return [u, a]: the least sum of latencies (or largest latency) of layers a … on the devices after the first u."""
    total = len(choices)
    table = np.full((total + 1, layers + 1), np.inf)
    table[total, layers] = 0.0
    for used in range(total - 1, -1, -1):
        for submesh in choices[used]:
            behind = table[used + submesh.devices]
            if not np.isfinite(behind).any():
                continue
            both = np.maximum(submesh.latency, behind) if largest else submesh.latency + behind
            if cap < np.inf:
                both = np.where(submesh.latency <= cap, both, np.inf)
            np.minimum(table[used], both.min(axis=1), out=table[used])
    return table


def _stages(choices: Sequence[Sequence[Submesh]], table: Real, layers: int, cap: float) -> tuple[Stages, float]:
    """Return the stages of a solution, and their largest latency."""
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
    return found, largest


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """Return the programme's stages on all devices.

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
    for order in [blocks] if given or len(blocks) == 1 else [blocks, blocks[::-1]]:
        solved = least_latency(list(_choices(prices, order, micro_batch, count)), layers, count)
        if solved is not None:
            found.append(_arrangement(solved[1], order, in_order=given))
    if not found:
        raise NotApplicable(
            f"Alpa's programme has no stages that fit on all {len(cluster.devices)} devices in micro-batches of "
            f"{micro_batch}"
        )
    return tuple(found)


def _choices(prices: Prices, blocks: list[list[Device]], size: int, count: int) -> Iterator[list[Submesh]]:
    """Yield for each number of devices used so far the submeshes of the next stage."""
    left = sum(map(len, blocks))
    widths = [width for width in shapes(prices.cluster) if not prices.job.replicas or width in prices.job.replicas]
    for block in blocks:
        spans = {
            width: _Spans(prices, block[:width], size, count) for width in widths if width <= min(len(block), count)
        }
        known: dict[tuple[int, int], Submesh] = {}
        for place in range(len(block)):
            own: list[Submesh] = []
            for width in (width for width in spans if width <= len(block) - place):
                held = min(-(-left // width), -(-count // width))
                if (width, held) not in known:
                    known[width, held] = Submesh(width, spans[width].latency(held))
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


class _Spans:
    """Times and bytes of every span of layers on some replicas: arrays [a, b], one micro-batch."""

    def __init__(self, prices: Prices, devices: list[Device], size: int, count: int) -> None:
        chain = prices.chain((tuple(devices),), size)
        layers, again = chain.layers, chain.recomputable
        boundary = prices.table(devices[0].kind, size).boundary
        self._none = np.tri(layers + 1, layers + 1, 0, dtype=bool)  # b ≤ a: no span
        self._room = int(chain.limit[0]) if chain.limit[0] == UNLIMITED else int(chain.limit[0] - chain.runtime[0])

        def sums(row: Array) -> Array:
            before = np.concatenate([[0], np.cumsum(row, dtype=np.int64)])
            spans: Array = before[None, :] - before[:, None]
            return spans

        def most(row: Array) -> Array:
            found = np.zeros((layers + 1, layers + 1), np.int64)
            for a in range(layers):
                found[a, a + 1 :] = np.maximum.accumulate(row[a:])
            return found

        summed = sums(chain.reduce[0] + chain.gather[0] + chain.lost[0])
        reduced = summed + int(chain.reduce_base[0] + chain.gather_base[0]) * (summed > 0)
        work = sums(chain.forward[0] + chain.backward[0])
        repeated = sums(np.where(again, chain.forward[0], 0))
        self._times = [(time / len(devices) + reduced / count).astype(float) for time in (work, work + repeated)]
        # Bytes that stay, with copies of shared weights; held per micro-batch, and peaks, as two variants.
        self._resident = sums(chain.resident[0])
        for shared in chain.shared:
            holds = np.isin(np.arange(layers), shared.layers).astype(np.int64)
            first = np.arange(layers) == shared.layers[0]
            copied = (sums(holds) > 0) & (sums(first.astype(np.int64)) == 0)
            self._resident = self._resident + int(shared.resident[0]) * copied
        received = np.concatenate([[0], boundary, [0]])[:, None]
        kept = np.where(again, np.minimum(chain.output[0], chain.saved[0]), chain.saved[0])
        rebuilt = np.where(again, chain.saved[0] + chain.workspace[0], chain.workspace[0])
        self._held = [sums(saved) + received for saved in (chain.saved[0], kept)]
        self._peak = [most(chain.workspace[0]), most(rebuilt)]

    def latency(self, held: int) -> Real:
        """Latency with so many micro-batches in flight: nothing recomputed, else everything, else infinite."""
        need = [self._resident + held * each + peak for each, peak in zip(self._held, self._peak, strict=True)]
        keeps, repeats = (bytes_ <= self._room for bytes_ in need)
        chosen: Real = np.where(keeps, self._times[0], np.where(repeats, self._times[1], np.inf))
        chosen[self._none] = np.inf
        return chosen


def _arrangement(stages: Stages, blocks: list[list[Device]], in_order: bool) -> Arrangement:
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
    return Arrangement((0, *(b for _, b, _ in stages)), tuple(devices[number] for number in range(len(stages))))


def _sums(model: Model, cluster: Cluster) -> int:
    """Sums of latencies for one cap."""
    return len(cluster.devices) * len(shapes(cluster)) * len(model.layers) ** 2


PLANNER = BaselinePlanner(
    "alpa-stages",
    "least sum of stage latencies and (B − 1) times the largest, on submeshes",
    "Alpa's inter-operator programme (OSDI 2022), with replicas for its intra-operator plans; 1F1B",
    ("1f1b-sno", "1f1b-as"),
    arrange,
    lambda model, cluster: 6 * _sums(model, cluster),
)
