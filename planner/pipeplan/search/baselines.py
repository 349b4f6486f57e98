"""What every heuristic balancer would do, judged like everybody else: warm starts, and the report's baseline."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeplan.balance import BALANCERS, NotApplicable
from pipeplan.cluster import Cluster
from pipeplan.search.candidates import Candidate
from pipeplan.search.judge import Judged, judge, overflow, without_empty_stages


@dataclass(frozen=True)
class Baseline:
    """A balancer's best plan, or why it has none."""

    name: str
    judged: Judged | None
    why: str = ""

    @property
    def value(self) -> int | None:
        """Nanoseconds; None without a plan."""
        return None if self.judged is None else self.judged.value

    @property
    def label(self) -> str:
        """Depth, micro-batches and family of the plan, for people."""
        return "" if self.judged is None else self.judged.label

    @property
    def peaks(self) -> tuple[int, ...]:
        """Peak bytes of each device."""
        return () if self.judged is None else self.judged.timeline.peaks


def baselines(
    cluster: Cluster, candidates: Sequence[Candidate], report: Callable[[Judged], None] = lambda _: None
) -> Mapping[str, Baseline]:
    """Each balancer at the greatest depth, with the micro-batch size and schedule family that suit its cut best.

    Parameters
    ----------
    report : callable
        Hears of every plan that was simulated.
    """
    depth = max((candidate.depth for candidate in candidates), default=0)
    deepest = [candidate for candidate in candidates if candidate.depth == depth]
    return {name: _best_of(name, cluster, deepest, report) for name in BALANCERS}


def ranked(found: Iterable[Baseline]) -> list[Baseline]:
    """Fastest first, those without a plan last."""
    return sorted(found, key=lambda baseline: (baseline.value is None, baseline.value or 0))


def _best_of(
    name: str, cluster: Cluster, candidates: Sequence[Candidate], report: Callable[[Judged], None]
) -> Baseline:
    best: Judged | None = None
    why = ""
    for candidate in candidates:
        try:
            boundaries = BALANCERS[name].balance(candidate.chain, candidate.micro_batches)
        except NotApplicable as reason:
            why = str(reason)
            continue
        excess = overflow(candidate, boundaries)
        if excess is not None:
            why = excess
            continue
        shorter, kept = without_empty_stages(candidate, boundaries)
        if best is not None and shorter.problem.evaluate(kept) >= best.value:
            continue  # its bound says that simulating it is no use
        judged = judge(cluster, candidate, boundaries)
        report(judged)
        if best is None or judged.value < best.value:
            best = judged
    return Baseline(name, best, "" if best else why)
