"""Description of the searched space where layers may be divided."""

from dataclasses import replace

from pipeplan.core import searched as sentences
from pipeplan.core.searched import Searched

DIVIDED = (
    "{whole}, weights streamed for every micro-batch; and layers divided between neighbours of an unreplicated line, "
    "weights on chip where they fit"
)
"""Layers that a stage may hold."""

BEYOND_NEIGHBOURS = "tensor, sequence and context parallelism beyond two neighbours that divide a layer"
REPLICAS = "divided layers on replicated stages, recomputed, or between kinds of device whose profiles differ in bytes"
DISTANT_PARTS = "a part of a layer on distant devices"
"""What is not searched."""


def with_divided_layers(whole: Searched, opened: int = 0) -> Searched:
    """Add the plans with layers divided between neighbours to the description of plans of whole layers."""
    # Divided layers are searched under the named families only.
    without = {sentences.TENSOR: BEYOND_NEIGHBOURS, sentences.ASKED_FOR: sentences.OTHER_ORDERS}
    known = (next(filter(sentence.startswith, without), sentence) for sentence in whole.not_searched)
    rest = tuple(without.get(sentence, sentence) for sentence in known)
    partitions = DIVIDED.format(whole=whole.partitions)
    beyond = (*rest, REPLICAS, DISTANT_PARTS)
    return replace(whole, opened=whole.opened + opened, partitions=partitions, not_searched=beyond)
