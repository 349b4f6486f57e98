"""3-D tensor parallelism: linear maps on a cube of processes (Bian et al., arXiv 2105.14450, 2021).

::

    x        rows over axes w and i, features over o          x and the weight are gathered along i and w, and the
    weight   outputs over i and w, inputs over o              product, a part of a sum along o, is reduced and
    y        rows over axes w and o, features over i          scattered: i and o have changed places

Each member has 1 / (w i o) of every tensor. The next linear map gets its axes with i and o exchanged
(`Axes.swapped`), so nothing is laid out anew between two of them. The three axes may have unlike sizes.
"""

from pipeplan_executor.sharding.cube.axes import Axes, axes_of, part_of
from pipeplan_executor.sharding.cube.layer_norm_3d import layer_norm_3d
from pipeplan_executor.sharding.cube.linear_3d import linear_3d

__all__ = ["Axes", "axes_of", "layer_norm_3d", "linear_3d", "part_of"]
