"""Mean and quantile of sampled step times, with standard errors. Samples are pairs (`simulate.perturbed.factors`)."""

from dataclasses import dataclass
from math import ceil, floor, inf, sqrt

import numpy as np

from pipeplan.simulate.perturbed.times import Ints


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number from samples and its standard error."""

    value: float
    error: float


def mean(times: Ints) -> Estimate:
    """Return the mean; its error is the standard deviation of the pairs' means over the root of their number.

    Pairs are independent of each other; the two samples of a pair are not. With fewer than two pairs the error is
    infinite.
    """
    pairs = times[: len(times) // 2 * 2].reshape(-1, 2).mean(axis=1)
    error = float(pairs.std(ddof=1)) / sqrt(len(pairs)) if len(pairs) > 1 else inf
    return Estimate(float(times.mean()), error)


def quantile(times: Ints, q: float) -> Estimate:
    """Return the q-quantile and its standard error.

    For independent samples the number below the true quantile is binomial. So the quantile lies between the order
    statistics n q ± √(n q (1 − q)) about as often as a normal variable within one standard deviation. Half their
    distance is the error, whatever the distribution (David and Nagaraja, Order Statistics, 3rd edition, section 7.1).
    In a pair one sample tends to be below and one above, so the number varies less and the error is conservative.
    """
    n, ordered = len(times), np.sort(times)
    middle, reach = n * q, sqrt(n * q * (1 - q))
    low = min(max(floor(middle - reach), 0), n - 1)
    high = min(max(ceil(middle + reach), 0), n - 1)
    return Estimate(float(np.quantile(ordered, q)), float(ordered[high] - ordered[low]) / 2)
