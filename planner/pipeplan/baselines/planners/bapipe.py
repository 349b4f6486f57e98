"""BaPipe-style greedy partitioner with its best order of devices.

BaPipe takes the order of unlike accelerators as given, as we understand it. Here the greedy runs for every distinct
order, and its best plan counts. A better plan of ours is then not due to the order alone.
"""

from itertools import pairwise

from pipeplan.baselines.deadline import check_deadline
from pipeplan.baselines.partitioners import bapipe
from pipeplan.baselines.partitioners.partitioner import NotApplicable
from pipeplan.baselines.planners.orders import device_orders
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job, Order
from pipeplan.core.model import Model
from pipeplan.costs.pricing import price

OF_AN_ORDER = 6_000
"""Effort of an order of devices, for each layer and device."""


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """Return the greedy's partition for every order of unlike devices for which it has one.

    Raises
    ------
    NotApplicable
        With the reason of the last order, if there is no partition for any order.
    """
    orders = [cluster.devices] if job.order is Order.GIVEN else device_orders(cluster)
    found: list[Arrangement] = []
    why = ""
    for devices in orders:
        check_deadline()
        order = devices[: len(model.layers)]  # every stage has at least one layer
        try:
            boundaries = bapipe.balance(price(model, cluster, order, micro_batch, job), job.batch // micro_batch)
        except NotApplicable as reason:
            why = str(reason)
            continue
        filled = [s for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
        ends = (0, *(boundaries[s + 1] for s in filled))
        found.append(Arrangement(ends, tuple((order[s].index,) for s in filled)))
    if not found:
        raise NotApplicable(why)
    return tuple(dict.fromkeys(found))


def effort(model: Model, cluster: Cluster) -> int:
    """Return the effort of all orders, each of which is priced and bounded by itself."""
    return OF_AN_ORDER * len(model.layers) * len(cluster.devices) * len(device_orders(cluster))


PLANNER = BaselinePlanner(
    "bapipe-greedy",
    "BaPipe-style greedy with its best order of devices",
    "our own implementation of BaPipe's exploration (arXiv 2012.12544) as we understand it; no code was published",
    ("1f1b-sno", "1f1b-so", "1f1b-as", "fbp-as"),
    arrange,
    effort=effort,
)
