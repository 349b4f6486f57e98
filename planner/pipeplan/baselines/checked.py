"""Check of what a heuristic returns: its own faults are reasons why it has no plan, and no fault of the search.

::

    balance(chain, 16) ──▶ (0, 5, 9, 12)      a proposal
                       ──▶ (0, 9, 5, 12)      no plan: its boundaries do not divide 12 layers among 3 stages …
                       ──▶ ValueError         no plan: it failed with ValueError: …
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Any

from pipeplan.baselines.deadline import OutOfTime
from pipeplan.baselines.partitioners.partitioner import NotApplicable
from pipeplan.baselines.planners.planner import Arrangement, unlike
from pipeplan.core.cluster import Cluster
from pipeplan.core.figures import shown
from pipeplan.costs.chain import Boundaries


@contextmanager
def own_faults() -> Iterator[None]:
    """Turn whatever a heuristic raises by mistake into `NotApplicable`, with the error and its line."""
    try:
        yield
    except (NotApplicable, OutOfTime):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        raise NotApplicable(f"it failed with {type(error).__name__}: {error} ({where})") from error


def boundaries_of(found: Any, layers: int, stages: int) -> Boundaries:
    """Return boundaries as whole numbers.

    Raises
    ------
    NotApplicable
        If they are none of so many layers and stages.
    """
    try:
        own = tuple(index(each) for each in found)
    except TypeError:
        raise NotApplicable(f"it returned {shown(found)}, and boundaries are whole numbers") from None
    if len(own) != stages + 1 or own[0] != 0 or own[-1] != layers or any(a > b for a, b in pairwise(own)):
        raise NotApplicable(
            f"its boundaries {shown(own)} do not divide {layers} layers among {stages} stages: they are {stages + 1} "
            f"numbers that begin with 0, never fall, and end with {layers}"
        )
    return own


def invalid(arrangement: Arrangement, layers: int, cluster: Cluster) -> str | None:
    """Describe why an arrangement is no plan of so many layers on a cluster; None if it is one."""
    devices = [device for stage in arrangement.devices for device in stage]
    if not all(arrangement.devices) or len(set(devices)) < len(devices):
        return f"its stages lie on {shown(arrangement.devices)}: each has devices of its own"
    if not all(0 <= device < len(cluster.devices) for device in devices):
        return f"its stages lie on {shown(arrangement.devices)}, and the cluster has {len(cluster.devices)} devices"
    try:
        own = boundaries_of(arrangement.boundaries, layers, len(arrangement.devices))
    except NotApplicable as reason:
        return str(reason)
    if any(a == b for a, b in pairwise(own)):
        return f"its boundaries {shown(own)} leave a stage empty"
    return unlike(arrangement, cluster)
