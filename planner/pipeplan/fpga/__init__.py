"""Lines of asynchronous devices (FPGAs), as in BaPipe: neighbours divide a layer, weights stay on chip where they fit.

`solve` calls `divide` where a job asks for divided layers (``intra_layer``); nothing below this room knows of lines,
except that `layer_costs` also prices layers with weights on chip.

::

    line      one size, one family, one order of devices: the chain, and its fractional partition problem
    space     all lines that the job allows
    evaluate  shares as stages with times and bytes, simulated
    shares    of equal work, BaPipe's method as we understand it; the parts into which a layer can be divided
    search    branch-and-bound over lines, after the search over whole layers
    searched  the searched space in words
"""

from pipeplan.fpga.search import divide
from pipeplan.fpga.searched import with_divided_layers
from pipeplan.fpga.space import require_streams

__all__ = ["divide", "require_streams", "with_divided_layers"]
