"""Offering a partition under every schedule that it fits."""

from collections.abc import Iterable

from pipeplan.costs.chain import Boundaries
from pipeplan.search.branch_and_bound import Prover
from pipeplan.search.evaluate import judge
from pipeplan.search.fill_memory import fuller
from pipeplan.search.space.candidates import Candidate


def offer_all(prover: Prover, candidates: Iterable[Candidate], boundaries: Boundaries) -> None:
    """Judge a partition under those candidates that it fits and whose bounds promise more than is known.

    Beside them stand the 1F1B ones with as many micro-batches in flight as fit. Where bounds tie, those that hold least
    come first.
    """
    fitting = [candidate for candidate in candidates if candidate.fits(boundaries)]
    others = [fuller(prover.cluster, candidate, boundaries) for candidate in fitting]
    every = {(each.family.name, each.in_flight): each for each in (*fitting, *others) if each is not None}
    promising = [(each.problem.evaluate(boundaries), sum(each.in_flight), key) for key, each in every.items()]
    for bound, _, key in sorted(promising):
        if prover.value is not None and bound >= prover.value:
            return
        if prover.affords(every[key]):
            with prover.pace.simulating(every[key]):
                judged = judge(prover.cluster, every[key], boundaries)
            prover.offer(judged)
