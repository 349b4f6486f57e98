"""Checks that the sums of a planning problem stay within the solvers' 64-bit integers."""

import numpy as np

from pipeplan.core.cluster import Cluster, Link
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.table import Table

LARGEST_SUM = 2**60
"""Largest total of a step in nanoseconds or bytes: 36 years, 1 EiB. The bits above are for sums of such totals."""


def require_exact(table: Table, model: Model, cluster: Cluster, job: Job, name: str, micro_batch: int) -> None:
    """Refuse costs whose sums over a step would exceed the range of exact integers.

    Raises
    ------
    InputError
        Naming the sum, its size and a remedy.
    """
    count = job.batch // micro_batch * model.slices
    stages = min(len(cluster.devices), len(model.layers))
    per_byte, latency = _slowest_links(cluster)
    parameters = float(sum(layer.parameters for layer in model.layers))
    frozen = float(sum(layer.frozen for layer in model.layers))
    crossing = float(table.boundary.max()) if len(table.boundary) else 0.0
    computed = (count + stages) * _total(table.forward, table.backward, table.input_gradient, table.weight_gradient)
    saved = count * _total(table.saved, table.workspace)
    moved = 2 * (count + stages) * (crossing * per_byte + latency)
    reduced = 4 * len(cluster.devices) * latency + 4 * (parameters + frozen) * per_byte
    static = (8 + (job.state_bytes or 0) + (job.gradient_bytes or 0)) * parameters + 3 * frozen
    sums = computed, saved, moved, reduced, static, _total(table.update)
    if all(value <= LARGEST_SUM for value in sums):
        return
    each = f"the {count} micro-batches of {micro_batch} samples of a step"
    remedy = "ask for a smaller batch or larger micro-batches, or check the profile"
    words = (
        (each, "ns of computation", remedy),
        (f"what {each} save", "bytes", remedy),
        (f"the transfers of {each}", "ns", "check bandwidths and latencies"),
        ("the reduction of gradients", "ns", "check bandwidths, latencies and parameters"),
        ("parameters, frozen weights, gradients and optimiser state", "bytes", "check them"),
        ("the optimiser step", "ns", "check the profile"),
    )
    value, (what, unit, todo) = next(each for each in zip(sums, words, strict=True) if not each[0] <= LARGEST_SUM)
    raise InputError(
        f"{name}: {what} come to {value:.3g} {unit}, and sums must stay below {LARGEST_SUM} (2^60) to be exact; {todo}"
    )


def _slowest_links(cluster: Cluster) -> tuple[float, int]:
    """Return the nanoseconds per byte of the slowest link, and the longest latency with overhead."""
    links: list[Link] = list({node.link for node in cluster.nodes})
    largest = max(cluster.kinds.values(), key=lambda kind: kind.at_card)
    network = cluster.between(largest, largest)
    links += [] if network is None else [network]
    rates = [each.in_collectives.bandwidth for link in links for each in (link, link.in_units)]
    longest = max(link.latency + link.unit_overhead for link in links)
    return max(0.0 if rate is None else 1e9 / rate for rate in rates), longest


def _total(*arrays: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> float:
    """Return the sum of all entries as a float, without overflow."""
    return sum(float(array.sum(dtype=np.float64)) for array in arrays)
