"""Bytes that live only while a layer computes: temporaries, gradients on their way, an input that nobody saves.

While layer i runs, forward or backward, a stage holds what layers 0 … i saved. All it has beyond that, at its peak,
is layer i's workspace. That includes the row's last output and its gradient, which the engine holds throughout, as it
does for each stage.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import nn

from pipeplan.frontend.profile.meter import meter_for
from pipeplan.frontend.profile.passes import Feed, run_pass


def workspace_bytes(layers: Sequence[nn.Module], feed: Feed, saved: Sequence[int], device: torch.device) -> list[int]:
    """Measure one joined pass, into gradients that are there already.

    Parameters
    ----------
    saved : sequence of int
        Bytes that each layer keeps until backward (see `pipeplan.frontend.profile.saved`).

    Returns
    -------
    list of int
        One entry a layer.
    """
    order: list[tuple[bool, int]] = []
    meter = meter_for(device)

    def note(forward: bool, number: int) -> None:
        order.append((forward, number))
        meter.mark()

    with meter:
        run_pass(layers, feed, lambda number: note(True, number), lambda number: note(False, number))
    readings = meter.readings()
    held = list(accumulate(saved))
    workspace = [0] * len(layers)
    running: int | None = None  # the layer whose backward pass the last mark began
    for (forward, number), (_, peak) in zip(order, readings, strict=True):
        subject = number if forward else running
        if subject is not None and subject >= 0:
            workspace[subject] = max(workspace[subject], peak - held[subject])
        if not forward:
            running = number
    return workspace
