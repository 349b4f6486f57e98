"""What a row of sampled step times says, and how sure that is."""

from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np

from pipeplan.robust.times import Ints


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number from samples and its standard error."""

    value: float
    error: float


def mean(times: Ints) -> Estimate:
    """The mean; its error is the standard deviation over √n."""
    error = float(times.std(ddof=1)) / sqrt(len(times)) if len(times) > 1 else 0.0
    return Estimate(float(times.mean()), error)


def quantile(times: Ints, q: float) -> Estimate:
    """The q-quantile.

    The number of samples below the true one is binomial, so it lies between the order statistics n q ± √(n q (1 − q))
    about as often as a normal variable within one standard deviation: half their distance is the error, whatever the
    distribution (David and Nagaraja, Order Statistics, 3rd edition, section 7.1).
    """
    n, ordered = len(times), np.sort(times)
    middle, reach = n * q, sqrt(n * q * (1 - q))
    low = min(max(floor(middle - reach), 0), n - 1)
    high = min(max(ceil(middle + reach), 0), n - 1)
    return Estimate(float(np.quantile(ordered, q)), float(ordered[high] - ordered[low]) / 2)
