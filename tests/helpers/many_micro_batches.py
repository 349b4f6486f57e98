"""Small allocation problems of 1F1B whose stages hold few of many micro-batches."""

import numpy as np
from hypothesis import strategies as st

from pipeplan_formulations.allocation import ChainAllocation


@st.composite
def many_micro_batches(draw) -> ChainAllocation:
    """Few layers on devices of one or two kinds, of several widths, with many more micro-batches than are in flight."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers, kinds, top = draw(st.integers(2, 5)), draw(st.integers(1, 2)), draw(st.sampled_from([5, 100, 10**5]))
    hop = int(top * draw(st.sampled_from([0, 0.2, 1])))
    return ChainAllocation(
        forward=rng.integers(1, top + 1, (kinds, layers)),
        backward=rng.integers(1, 2 * top + 1, (kinds, layers)),
        saved=rng.integers(0, 10, layers),
        output=rng.integers(0, 5, layers),
        recomputable=rng.random(layers) < draw(st.sampled_from([0.0, 0.5])),
        limit=np.full(kinds, draw(st.sampled_from([2**40, 30, 60, 90, 120]))),
        units=rng.integers(1, 4, kinds) if kinds > 1 else rng.integers(2, 6, 1),
        node=rng.integers(1, 4, kinds),
        send=rng.integers(0, hop + 1, (kinds, kinds, 2, layers - 1)),
        latency=rng.integers(0, 3, (kinds, kinds, 2)),
        micro_batches=draw(st.integers(4, 40)),
        widths=draw(st.sampled_from([(1,), (1, 2), (1, 2, 3), (2, 3), (1, 3)])),
        overlap=draw(st.sampled_from(["none", "copy", "stream"])),
        in_flight_rule=draw(st.sampled_from(["sno", "so", "non_increasing"])),
        two_trips=True,
    )
