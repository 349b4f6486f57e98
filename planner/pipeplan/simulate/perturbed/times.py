"""Times of a schedule's actions and transfers in a block of perturbed steps."""

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
    """Perturbed times in nanoseconds, rounded up, so that no mean is below the nominal time.

    Attributes
    ----------
    durations : array of int64, shape (n, k)
        Time of every action in every sample.
    occupancies, latencies : array of int64, shape (t, k)
        Times of every transfer in every sample.
    transfer_of : list of int
        The transfer of each action, or `NOTHING`.
    """

    durations: Ints
    occupancies: Ints
    latencies: Ints
    transfer_of: list[int]


def perturbed(program: Program, factors: Factors, devices: Sequence[int]) -> Times:
    """Return the times of one block.

    Parameters
    ----------
    devices : sequence of int
        The cluster's number of each of the pipeline's devices.
    """
    routes = _routes(program, devices)
    transfer_of = [NOTHING] * len(program.actions)
    for t, (i, _) in enumerate(routes):
        transfer_of[i] = t
    channels = [program.channels[program.channel_of[i]] for i, _ in routes]
    of_transfers = _transfer_factors([route for _, route in routes], factors)
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
    """Return one row of factors per action; all replicas that reduce together take the row of the first one."""
    rows: dict[tuple[int, Kind], list[int]] = defaultdict(list)
    for i, action in enumerate(program.actions):
        rows[program.homes[i], _factor_kind(action.kind)].append(i)
    found = np.empty((len(program.actions), factors.size))
    slow = {device: factors.of_device(devices[device]) for device in set(program.homes)}
    for (device, kind), own in rows.items():
        own.sort(key=lambda i: _rank(program, i))
        found[own] = factors.of_actions(devices[device], kind, len(own))
        if kind is not Kind.REDUCE:
            found[own] *= slow[device]
    for together in program.collectives:
        if program.actions[together[0]].kind is Kind.REDUCE:
            found[together] = found[together[0]]
    return found


def _factor_kind(kind: Kind) -> Kind:
    """Return the kind whose factors an action uses: I uses those of B, as the first part of the same work."""
    return Kind.BACKWARD if kind is Kind.INPUT_GRADIENT else kind


def _routes(program: Program, devices: Sequence[int]) -> list[tuple[int, tuple[int, int]]]:
    """Return every sending action with its (source, target) devices, sorted by pair, then by micro-batch."""
    receiver: dict[int, int] = {}
    n = len(program.actions)
    for i, needs in enumerate(program.needs):
        receiver |= {signal - n: program.homes[i] for signal in needs if signal >= n}
    senders = [i for i, channel in enumerate(program.channel_of) if channel != NOTHING]
    found = [(i, (devices[program.homes[i]], devices[receiver[i]])) for i in senders]
    return sorted(found, key=lambda entry: (entry[1], _rank(program, entry[0])))


def _transfer_factors(routes: Sequence[tuple[int, int]], factors: Factors) -> NDArray[np.float64]:
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for route in routes:
        counts[route] += 1
    rows = [factors.of_transfers(*route, count) for route, count in counts.items()]
    return np.concatenate(rows) if rows else np.empty((0, factors.size))


def _rank(program: Program, i: int) -> tuple[int, int, int, int]:
    """Return a sort key of an action among those of its kind that does not depend on the schedule's order."""
    action = program.actions[i]
    return action.micro_batch, action.slice, action.stage, int(action.kind is not Kind.FORWARD)
