"""The times of a schedule's actions and transfers in a block of perturbed steps."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.schedule import Kind
from pipeplan.simulate.perturbed.factors import Factors
from pipeplan.simulate.program import Program
from pipeplan.simulate.structure import NOTHING

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Times:
    """Nanoseconds, rounded up, so that no mean is below the nominal time.

    Attributes
    ----------
    durations : array of int64, shape (n, k)
        Of every action in every sample.
    occupancies, latencies : array of int64, shape (t, k)
        Of every transfer.
    transfer_of : list of int
        The transfer of each action, or `NOTHING`.
    """

    durations: Ints
    occupancies: Ints
    latencies: Ints
    transfer_of: list[int]


def perturbed(program: Program, factors: Factors, devices: Sequence[int]) -> Times:
    """The times of one block.

    Parameters
    ----------
    devices : sequence of int
        The number by which each of the pipeline's devices is known everywhere: the cluster's.
    """
    ways = _ways(program, devices)
    transfer_of = [NOTHING] * len(program.actions)
    for t, (i, _) in enumerate(ways):
        transfer_of[i] = t
    channels = [program.channels[program.channel_of[i]] for i, _ in ways]
    of_transfers = _transfer_factors([way for _, way in ways], factors)
    return Times(
        durations=_scaled(program.durations, _action_factors(program, factors, devices)),
        occupancies=_scaled([channel.occupancy for channel in channels], of_transfers),
        latencies=_scaled([channel.latency for channel in channels], of_transfers),
        transfer_of=transfer_of,
    )


def _scaled(times: Sequence[int], factors: NDArray[np.float64]) -> Ints:
    scaled = np.array(times, np.int64).reshape(-1, 1) * factors
    return np.ceil(scaled, out=scaled).astype(np.int64)


def _action_factors(program: Program, factors: Factors, devices: Sequence[int]) -> NDArray[np.float64]:
    """One row an action. A collective's is that of its first replica, on all of them."""
    rows: dict[tuple[int, Kind], list[int]] = defaultdict(list)
    for i, action in enumerate(program.actions):
        rows[program.homes[i], _sort(action.kind)].append(i)
    found = np.empty((len(program.actions), factors.size))
    slow = {device: factors.of_device(devices[device]) for device in set(program.homes)}
    for (device, kind), own in rows.items():
        own.sort(key=lambda i: _turn(program, i))
        found[own] = factors.of_actions(devices[device], kind, len(own))
        if kind is not Kind.REDUCE:
            found[own] *= slow[device]
    for together in program.collectives:
        found[together] = found[together[0]]
    return found


def _sort(kind: Kind) -> Kind:
    """I takes the factor of B: it is the same work's first part."""
    return Kind.BACKWARD if kind is Kind.INPUT_GRADIENT else kind


def _ways(program: Program, devices: Sequence[int]) -> list[tuple[int, tuple[int, int]]]:
    """Every action that sends, with the devices from which and to which; pair by pair, in order of micro-batches."""
    receiver: dict[int, int] = {}
    n = len(program.actions)
    for i, needs in enumerate(program.needs):
        receiver |= {signal - n: program.homes[i] for signal in needs if signal >= n}
    senders = [i for i, channel in enumerate(program.channel_of) if channel != NOTHING]
    found = [(i, (devices[program.homes[i]], devices[receiver[i]])) for i in senders]
    return sorted(found, key=lambda entry: (entry[1], _turn(program, entry[0])))


def _transfer_factors(ways: Sequence[tuple[int, int]], factors: Factors) -> NDArray[np.float64]:
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for way in ways:
        counts[way] += 1
    rows = [factors.of_transfers(*way, count) for way, count in counts.items()]
    return np.concatenate(rows) if rows else np.empty((0, factors.size))


def _turn(program: Program, i: int) -> tuple[int, int, int, int]:
    """What stays an action's place among its like whatever order the schedule gives them."""
    action = program.actions[i]
    return action.micro_batch, action.slice, action.stage, int(action.kind is not Kind.FORWARD)
