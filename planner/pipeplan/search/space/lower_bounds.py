"""`LowerBounds`: cheap lower bounds on the plans of a space, from all work and the fastest kinds of device."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod

import numpy as np

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job, Objective
from pipeplan.costs.chain import Array, Chain
from pipeplan.costs.pricing import Prices


class LowerBounds:
    """Lower bounds at one micro-batch size, from each layer's fastest kind of device.

    Let x_s be the work of stage s on the fastest kind of each of its layers. Let M_s be the micro-batches of its
    busiest replica, and ρ_s ≥ 1 the least factor by which its kind is slower. The way-back bound of the partition
    problem is Σ_{t<s} x_t + M_s ρ_s x_s ≤ T. So the work of the stages up to s is at most C_s = C_{s−1} + (T − C_{s−1})
    / (M_s ρ_s), and all work at most T (1 − Π (1 − 1 / (M_s ρ_s))).

    Where micro-batches pass in slices, the way there and back is that of the first slice, at least a share φ of the
    work of all: Σ_{t<s} φ x_t + M_s ρ_s x_s ≤ T. So φ times all work is at most T (1 − Π (1 − φ / (M_s ρ_s))). Where
    backwards may be split, the own-ending bound takes its place: φ is a share of the first forward alone.

    Index: bottleneck; way back and own ending → `of_stages`, `of_chain`.
    """

    def __init__(self, prices: Prices, size: int, splits: bool = False) -> None:
        kinds = {kind.name: kind for kind, _ in prices.cluster.counts}
        tables = {name: prices.table(kind, size) for name, kind in kinds.items()}
        work = {name: table.forward + table.backward for name, table in tables.items()}
        first = [table.first_forward + table.first_backward for table in tables.values()]
        if splits:
            for name, each in tables.items():
                work[name] = each.forward + each.least_first_part + each.least_second_part
            first = [table.first_forward for table in tables.values()]
        shares = [own[every > 0] / every[every > 0] for own, every in zip(first, work.values(), strict=True)]
        least = min((float(row.min()) for row in shares if row.size), default=1.0)
        self._set(work, prices.job, size, first=least, splits=splits)

    @classmethod
    def of_work(cls, work: Mapping[str, Array], job: Job, size: int, first: float = 1.0) -> "LowerBounds":
        """The bounds where each kind of device takes at least so many nanoseconds for the layers of a micro-batch.

        ``first``: share of them that the first of several slices takes at least.
        """
        found = cls.__new__(cls)
        found._set(work, job, size, first=first)
        return found

    def _set(self, work: Mapping[str, Array], job: Job, size: int, first: float, splits: bool = False) -> None:
        self._first, self._splits = first, splits
        least = np.minimum.reduce(list(work.values()))
        busy = least > 0
        self._slower = {
            name: float((own[busy] / least[busy]).min()) if busy.any() else 1.0 for name, own in work.items()
        }
        self._total, self._largest, self._layers = int(least.sum()), int(least.max()), len(least)
        endless = job.objective is Objective.BOTTLENECK
        self._count, self._samples = job.batch // size, job.batch if endless else 1
        self._bottleneck = endless or job.staleness > 0

    def of_stages(self, stages: Iterable[tuple[str, int]]) -> int:
        """Lower bound in nanoseconds on all plans on these stages, each a kind's name and a number of replicas."""
        return self._of_alike(Counter(stages))

    def _of_alike(self, alike: Mapping[tuple[str, int], int]) -> int:
        """The same, given how many stages have each kind and number of replicas."""
        rows = [(self._slower[name], -(-self._count // r), many) for (name, r), many in alike.items()]
        if self._bottleneck:  # bottleneck: M_s ρ_s x_s ≤ N T
            return _rounded(self._total / sum(many * self._samples / (count * slow) for slow, count, many in rows))
        return self._of_rows(rows, self._total, self._largest)

    def of_chain(self, chain: Chain) -> int:
        """Lower bound in nanoseconds on all steps of a chain, with what its passes wait for at levels 2 and 3."""
        work = chain.forward + chain.backward
        least = work.min(axis=0)
        busy = least > 0
        slower = (work[:, busy] / least[busy]).min(axis=1).tolist() if busy.any() else [1.0] * len(work)
        rows = [(slow, -(-self._count // r), 1) for slow, r in zip(slower, chain.replicas, strict=True)]
        return self._of_rows(rows, int(least.sum()), int(least.max()))

    def of_equal_stages(self, units: Mapping[str, int], replicas: int) -> int:
        """Lower bound in nanoseconds on plans with at most ``units`` stages of each kind, all with equal replicas."""
        left, alike = self._layers, dict[tuple[str, int], int]()
        for name in sorted(units, key=self._slower.__getitem__):  # the fastest ones, one for each layer
            if many := min(units[name], left):
                alike[name, replicas] = many
                left -= many
        return self._of_alike(alike)

    def evenly_shared(self, cluster: Cluster) -> int:
        """Nanoseconds if all devices shared the work of a step (or a sample) evenly: a lower bound on all plans."""
        speed = sum(count / self._slower[kind.name] for kind, count in cluster.counts)
        return _rounded(self._total * self._count / speed / (self._samples if self._bottleneck else 1))

    def of_teams(self, pools: Iterable[tuple[int, Mapping[str, int]]]) -> int:
        """Lower bound in nanoseconds on plans of teams: each pool has devices, and the sizes of teams of its kinds."""
        best = ((many, max(1 / (team * self._slower[name]) for name, team in kinds.items())) for many, kinds in pools)
        speed = sum(many * each for many, each in best)
        return max(_rounded(self._total * self._count / speed), self._way)

    def of_any(self, cluster: Cluster) -> int:
        """Lower bound in nanoseconds on all plans: work shared evenly, and in a step one micro-batch's way through."""
        return max(self.evenly_shared(cluster), self._way)

    @property
    def _way(self) -> int:
        """Nanoseconds of one micro-batch's way through, which no step is shorter than; steps that overlap may be."""
        return 0 if self._bottleneck else _rounded(self._first * self._total)

    def _of_rows(self, rows: list[tuple[float, int, int]], total: int, largest: int) -> int:
        """Lower bound in nanoseconds on a step; each row has ρ and M, and how many stages have these."""
        way = self._first * total
        idle = prod((1 - self._first / (count * slow)) ** many for slow, count, many in rows)
        spread = way / (1 - idle) if way else total / sum(many / (count * slow) for slow, count, many in rows)
        least = min(count for _, count, _ in rows)
        alone = least * largest if self._splits else way + (least - 1) * largest / 2
        return _rounded(max(spread, alone))


def _rounded(nanoseconds: float) -> int:
    """Round down, far enough to cover errors of the float arithmetic."""
    return int((1 - 1e-9) * nanoseconds)
