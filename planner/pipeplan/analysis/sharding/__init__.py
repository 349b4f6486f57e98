"""The split of every operator of a model on a mesh of devices: step time against memory, proved."""

from pipeplan.analysis.sharding.answer import Sharded
from pipeplan.analysis.sharding.question import shard

__all__ = ["Sharded", "shard"]
