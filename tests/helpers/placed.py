"""Equal stages with free links, on any placement."""

from itertools import pairwise
from math import lcm

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Placement, Stage, Transfer
from pipeplan.costs.chain import UNLIMITED


def equal_stages(placement: Placement, forward: int, inputs: int, weights: int) -> Pipeline:
    """Equal stages with one byte per activation; a joined backward takes as long as its two parts."""
    return placed(placement, tuple(Stage(forward, inputs + weights, inputs, weights, held=1) for _ in placement))


def placed(placement: Placement, stages: tuple[Stage, ...], latency: int = 0) -> Pipeline:
    """Stages on a placement, with only latency between them."""
    devices = 1 + max(device for homes in placement for device in homes)
    periods = [lcm(len(a), len(b)) for a, b in pairwise(placement)]
    ways = tuple((Transfer(1, 0, latency),) * period for period in periods)
    return Pipeline(stages, placement, ways, ways, Overlap.COPY, (0,) * devices, (UNLIMITED,) * devices)
