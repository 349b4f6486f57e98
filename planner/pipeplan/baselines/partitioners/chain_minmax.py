"""The exact answer to the question that most balancers ask: the least possible largest stage load."""

import numpy as np

from pipeplan.baselines.partitioners.balancer import Balancer, by_matrices
from pipeplan.baselines.partitioners.smallest_maximum import smallest_maximum
from pipeplan.costs.chain import Boundaries, Chain


def balance(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Least largest forward-and-backward time, each stage on its own device; transfers and memory are ignored.

    A stage stays empty only where that is strictly better (a device too slow for any layer) or layers are too few.
    """
    times, free = chain.forward + chain.backward, np.zeros_like(chain.send)
    filled = smallest_maximum(times, free)
    relaxed = smallest_maximum(times, free, empty=True)
    assert relaxed is not None  # one stage can hold everything
    value, boundaries = relaxed
    return boundaries if filled is None or value < filled[0] else filled[1]


BALANCER = Balancer(
    "chain-minmax",
    "exact least maximum of forward and backward time, unequal devices included",
    "the textbook dynamic programme for the linear partition problem, on the times of each stage's own device",
    balance,
    by_matrices,
)
