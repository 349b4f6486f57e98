"""Intra-layer partition, as on BaPipe's asynchronous devices: neighbours on a line divide a layer between them.

::

    line      one size, one family, one order of devices: the chain, and its fractional partition problem
    space     every line that the job allows
    judge     shares as stages with times and bytes, run by the one simulator
    balanced  what balance alone would divide: BaPipe's own way, as we understand it
    channels  into how many parts a layer can really be divided
    search    branch and bound over lines, after the search over whole layers
"""

from pipeplan.search.intra_layer.search import divide

__all__ = ["divide"]
