"""Lines in order of their bounds: each is solved, simulated, and closed once its bound reaches the best plan."""

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pipeplan.balance.structured.orders import device_orders
from pipeplan.chain import Chain
from pipeplan.cluster import Cluster, Device, Overlap
from pipeplan.cost import available_micro_batches
from pipeplan.errors import InputError
from pipeplan.intra_layer.balanced import balanced
from pipeplan.intra_layer.channels import channels
from pipeplan.intra_layer.judge import JudgedLine, judge
from pipeplan.intra_layer.line import Line
from pipeplan.job import Job, Order, Recompute
from pipeplan.model import Model
from pipeplan.on_chip import StreamedTimes, streamed_times
from pipeplan.pricing import Prices
from pipeplan.schedules import FAMILIES, Family, family
from pipeplan_formulations import fractional
from pipeplan_formulations.fractional import exact
from pipeplan_formulations.report import Limits, Status, Stop

Watch = Callable[[int | None, int, int], None]
SLICE = 10.0
"""Seconds that one line may take at most before the others have had their turn."""


def require_streams(cluster: Cluster, job: Job) -> None:
    """Refuse to divide layers where devices send complete tensors, and next to wishes about whole layers.

    Raises
    ------
    InputError
    """
    if cluster.overlap is not Overlap.STREAM:
        raise InputError(
            f"layers are divided only between devices whose tensors leave while they are made, and the devices of "
            f"{cluster.name!r} send complete ones; leave --intra-layer out, or set overlap: stream in the cluster"
        )
    wishes = [name for name in ("together", "no_cut_after", "pin") if getattr(job, name)]
    wishes += ["recompute: full"] if job.recompute is Recompute.FULL else []
    if wishes:
        raise InputError(f"divided layers do not go with {', '.join(wishes)} yet; leave one or the other out")


def lines(model: Model, cluster: Cluster, job: Job) -> list[Line]:
    """Every micro-batch size, order of unlike devices, depth and streaming family that the job allows."""
    kinds = list({device.kind.name: device.kind for device in cluster.devices}.values())
    sizes = tuple(job.batch // count for count in job.micro_batches)
    sizes = sizes or available_micro_batches(model, kinds, job.batch, extrapolate=job.extrapolate)
    families = [family(name) for name in job.schedules] or list(FAMILIES.values())
    families = [each for each in families if cluster.overlap in each.suits]
    prices = Prices(model, cluster, job)
    found = []
    for size in sizes:
        times = {
            kind.name: streamed_times(model, kind, size, extrapolate=job.extrapolate, optimizer=job.optimizer)
            for kind in kinds
        }
        for row in _rows(cluster, job):
            chain = prices.chain(tuple((device,) for device in row), size)
            found += [_line(cluster, chain, times, job, size, each) for each in families[: None if len(row) > 1 else 1]]
    return found


def _line(cluster: Cluster, chain: Chain, times: dict[str, StreamedTimes], job: Job, size: int, each: Family) -> Line:
    own = tuple(times[device.kind.name] for device in chain.devices)
    return Line(cluster, chain, own, job.batch // size, each, job.objective)


def _rows(cluster: Cluster, job: Job) -> Iterator[tuple[Device, ...]]:
    """Every depth of every order, once for each row of kinds and nodes."""
    orders = [cluster.devices] if job.order is Order.GIVEN else device_orders(cluster)
    most = len(cluster.devices)
    seen = set()
    for depth in [d for d in job.depths or range(1, most + 1) if d <= most]:
        for order in orders:
            key = tuple((device.kind.name, device.node) for device in order[:depth])
            if key not in seen:
                seen.add(key)
                yield order[:depth]


@dataclass
class LineSearch:
    """Best-first over lines, against a value to beat.

    Attributes
    ----------
    beat : int or None
        The value of the best plan so far, from wherever it came.
    best : JudgedLine or None
        The best divided plan that beats it.
    opened : int
        Lines that were solved.
    """

    model: Model
    limits: Limits
    watch: Watch
    beat: int | None = None
    best: JudgedLine | None = None
    opened: int = 0
    stop: Stop = Stop.OPTIMALITY
    _heap: list[tuple[int, int, Line]] = field(default_factory=list)
    _settled: int | None = None

    @property
    def bound(self) -> int | None:
        """No line beats this; None if there is no line."""
        known = [self._heap[0][0]] if self._heap else []
        known += [self._settled] if self._settled is not None else []
        return min(known, default=None)

    def run(self, every: list[Line]) -> None:
        """Search until no line can beat the best plan by more than the gap asked for, or the time is up."""
        began = time.monotonic()
        parts = channels(self.model)
        self._heap = [(self._less(line, line.problem.lower_bound()), n, line) for n, line in enumerate(every)]
        heapq.heapify(self._heap)
        try:
            while self._heap and (self.beat is None or self._heap[0][0] < self.beat * (1 - self.limits.gap)):
                left = self.limits.time - (time.monotonic() - began)
                if left <= 0:
                    self.stop = Stop.TIME
                    return
                bound, _, line = self._heap[0]
                closed = self._advance(line, parts, min(left, SLICE))
                heapq.heappop(self._heap)
                if closed is not None:
                    bound = max(bound, closed)
                    self._settled = bound if self._settled is None else min(self._settled, bound)
                self._tell()
        except KeyboardInterrupt:
            self.stop = Stop.INTERRUPT

    def offer(self, judged: JudgedLine) -> None:
        """A divided plan that somebody found."""
        if self.beat is None or judged.value < self.beat:
            self.beat, self.best = judged.value, judged
            self._tell()

    def _advance(self, line: Line, parts: tuple[int, ...], seconds: float) -> int | None:
        """Solve a line and simulate what comes out; its bound, or None if nothing fits."""
        self.opened += 1
        start = balanced(line)
        if start is not None:
            self._try(line, start, parts)
        enough = None if self.beat is None else self.beat + line.rounding
        limits = replace(self.limits, time=seconds, gap=max(self.limits.gap / 4, 1e-5))
        report = exact.solve(line.problem, limits, start, enough=enough)
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        if report.status is Status.INFEASIBLE:
            return None
        if report.solution is not None:
            self._try(line, report.solution, parts)
        return self._less(line, report.bound)

    def _try(self, line: Line, positions: fractional.Positions, parts: tuple[int, ...]) -> None:
        real = fractional.rounded(line.problem, positions, parts)
        if real is not None:
            self.offer(judge(line, real))

    @staticmethod
    def _less(line: Line, bound: int) -> int:
        return max(0, bound - line.rounding)

    def _tell(self) -> None:
        self.watch(self.beat, self.bound or 0, len(self._heap))
