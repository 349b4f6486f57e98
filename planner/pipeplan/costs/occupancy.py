"""Time for which tensors keep a link busy."""

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import Link

Array = NDArray[np.int64]

MOST = 2**33
"""Bytes up to which nanoseconds times bandwidth are 64-bit integers."""


def occupancies(link: Link, sizes: Array) -> Array:
    """Return the nanoseconds for which each of these numbers of bytes keeps a link busy; see `Link.occupancy`."""
    if link.bandwidth is not None and sizes.max(initial=0) <= MOST:
        found: Array = -(-sizes * 10**9 // link.bandwidth)
        return found
    of_size = {size: link.occupancy(size) for size in set(sizes.ravel().tolist())}
    return np.array([of_size[size] for size in sizes.ravel().tolist()], np.int64).reshape(sizes.shape)
