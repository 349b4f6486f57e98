"""Simulation of each sample by the event loop, for shared resources: their order of use depends on the times."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipeplan.simulate.perturbed.times import Ints, Times
from pipeplan.simulate.program import Channel, Program
from pipeplan.simulate.run import run
from pipeplan.simulate.structure import NOTHING


def replayed(program: Program, times: Times, samples: int, check: Callable[[], None] = lambda: None) -> Ints:
    """Return the step times of the block's first samples, shape (samples,)."""
    n = len(program.actions)
    known = {t: program.channels[program.channel_of[i]] for i, t in enumerate(times.transfer_of) if t != NOTHING}
    resources = [(known[t].resources, known[t].alone) for t in range(len(known))]
    found = []
    for k in range(samples):
        check()
        occupancies, latencies = times.occupancies[:, k].tolist(), times.latencies[:, k].tolist()
        perturbed = replace(  # every transfer becomes a channel of its own, on the same resources
            program,
            durations=times.durations[:, k].tolist(),
            channel_of=times.transfer_of,
            channels=tuple(map(Channel, occupancies, latencies, *zip(*resources, strict=True))) if resources else (),
        )
        found.append(max(run(perturbed).signals[:n], default=0))
    return np.array(found, np.int64)
