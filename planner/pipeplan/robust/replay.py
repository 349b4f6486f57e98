"""Sample by sample through the simulator's event loop: who gets a shared wire first depends on the times."""

from dataclasses import replace

import numpy as np

from pipeplan.robust.times import Ints, Times
from pipeplan.simulate.numbers import NOTHING
from pipeplan.simulate.program import Program
from pipeplan.simulate.run import run


def replayed(program: Program, times: Times, samples: int) -> Ints:
    """The step times of the block's first samples, shape (samples,)."""
    n = len(program.actions)
    channels = [program.channels[program.channel_of[i]] for i in range(n) if program.channel_of[i] != NOTHING]
    senders = [i for i in range(n) if program.channel_of[i] != NOTHING]
    own = [NOTHING] * n  # every transfer a channel of its own, on the wires it had
    for number, i in enumerate(senders):
        own[i] = number
    found = []
    for k in range(samples):
        occupancies, latencies = times.occupancies[:, k].tolist(), times.latencies[:, k].tolist()
        transfers = [times.transfer_of[i] for i in senders]
        disturbed = replace(
            program,
            durations=times.durations[:, k].tolist(),
            channel_of=own,
            channels=tuple(
                replace(channel, occupancy=occupancies[t], latency=latencies[t])
                for channel, t in zip(channels, transfers, strict=True)
            ),
        )
        found.append(max(run(disturbed).signals[:n], default=0))
    return np.array(found, np.int64)
