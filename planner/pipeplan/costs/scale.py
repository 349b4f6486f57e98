"""Checks that the sums of a planning problem stay within the solvers' 64-bit integers."""

import numpy as np

from pipeplan.core.cluster import Cluster, Link
from pipeplan.core.errors import InputError

LARGEST_SUM = 2**60
"""Largest total of a step in nanoseconds or bytes: 36 years, 1 EiB. The bits above are for sums of such totals."""


def slowest_links(cluster: Cluster) -> tuple[float, int]:
    """Return the nanoseconds per byte of the slowest link, and the longest latency with overhead."""
    links: list[Link] = list({node.link for node in cluster.nodes})
    largest = max(cluster.kinds.values(), key=lambda kind: kind.at_card)
    network = cluster.between(largest, largest)
    links += [] if network is None else [network]
    rates = [each.in_collectives.bandwidth for link in links for each in (link, link.in_units)]
    longest = max(link.latency + link.unit_overhead for link in links)
    return max(0.0 if rate is None else 1e9 / rate for rate in rates), longest


def require_exact(name: str, what: str, value: float, unit: str, remedy: str) -> None:
    """Refuse a sum that is too large.

    Raises
    ------
    InputError
        Naming the sum, its size and a remedy.
    """
    if not value <= LARGEST_SUM:
        raise InputError(
            f"{name}: {what} come to {value:.3g} {unit}, and sums must stay below {LARGEST_SUM} (2^60) to be exact; "
            f"{remedy}"
        )


def total(*arrays: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> float:
    """Return the sum of all entries as a float, without overflow."""
    return sum(float(array.sum(dtype=np.float64)) for array in arrays)
