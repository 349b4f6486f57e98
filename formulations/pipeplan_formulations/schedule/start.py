"""Where the solvers begin: the best orders known without them."""

from pipeplan_formulations.schedule.constructive import constructive
from pipeplan_formulations.schedule.incumbent import Incumbent
from pipeplan_formulations.schedule.instance import Orders
from pipeplan_formulations.schedule.serial import serial

SHARE = 0.1
"""Part of the time limit that list scheduling may take."""


def start(state: Incumbent, hint: Orders | None, seconds: float) -> None:
    """Offer one micro-batch after the other, the hint, and what the list schedulers find within so many seconds."""
    state.offer(serial(state.problem))
    if hint is not None:
        state.offer_foreign(hint)
    if not state.close:
        found = constructive(state.problem, seconds, state.enough)
        if found is not None:
            state.offer(found[1])
