"""Intra-layer partition, as on BaPipe's asynchronous devices: neighbours on a line divide a layer between them.

::

    line      one size, one family, one order of devices: the chain, and its fractional partition problem
    space     all lines that the job allows
    evaluate  shares as stages with times and bytes, simulated
    balanced  shares of equal work: BaPipe's method, as we understand it
    channels  the number of parts into which a layer can be divided
    search    branch-and-bound over lines, after the search over whole layers
"""

from pipeplan.search.intra_layer.search import divide

__all__ = ["divide"]
