"""Real torch models of unequal layers, small enough for a CPU: ``pipeplan profile pipeplan_executor.zoo:decoder``.

Each function builds a `pipeplan.workload.Workload` and draws its data at random; no download. Dropout is off, so that
a pipelined step and an unsplit one compute the same.
"""

from pipeplan_executor.zoo.decoder import decoder
from pipeplan_executor.zoo.mlp import mlp
from pipeplan_executor.zoo.vgg import vgg16, vgg16_224

__all__ = ["decoder", "mlp", "vgg16", "vgg16_224"]
