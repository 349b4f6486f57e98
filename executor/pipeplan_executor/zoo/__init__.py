"""Real torch models of unequal layers, small enough for a CPU: ``pipeplan profile pipeplan_executor.zoo:decoder``.

Each function builds a `frontend.workload.Workload` and draws its data at random; no download. Dropout is off, so that
a pipelined step and an unsplit one compute the same; where there is batch norm, on the same micro-batches.
"""

from pipeplan_executor.zoo.decoder import decoder, tied_decoder
from pipeplan_executor.zoo.gnmt import gnmt
from pipeplan_executor.zoo.mlp import mlp
from pipeplan_executor.zoo.resnet import resnet50, resnet50_224
from pipeplan_executor.zoo.unet import unet
from pipeplan_executor.zoo.vgg import vgg16, vgg16_224

__all__ = ["decoder", "gnmt", "mlp", "resnet50", "resnet50_224", "tied_decoder", "unet", "vgg16", "vgg16_224"]
