"""The optimisers that plans assume, as a profile times them and the executor runs them."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from pipeplan.core.choices import known
from pipeplan.core.job import OPTIMIZER_STATE


def build_optimizer(name: str, parameters: Iterable[Any], rate: float) -> torch.optim.Optimizer:
    """Return torch's optimiser for a name in `OPTIMIZER_STATE`.

    It is the fused one, which needs no memory beside parameters, gradients and state. Torch's default has temporaries,
    on GPUs as large as all parameters, and Adam took nine times as long on a CPU. Torch has none for complex numbers,
    which get the default.

    Parameters
    ----------
    name : {'sgd', 'momentum', 'adam'}
    parameters : iterable
        As torch's optimisers take them, with names or without.
    rate : float
        Learning rate.

    Raises
    ------
    InputError
        If the name is not known.
    """
    known(name, "optimizer", OPTIMIZER_STATE)
    given = list(parameters)
    fused = not any(tensor.is_complex() for tensor in _tensors(given))
    if name == "adam":
        return torch.optim.Adam(given, lr=rate, fused=fused)
    return torch.optim.SGD(given, lr=rate, momentum=0.9 if name == "momentum" else 0.0, fused=fused)


def _tensors(parameters: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors among parameters, pairs of names and parameters, or groups of these."""
    for each in parameters:
        if isinstance(each, dict):
            yield from _tensors(each["params"] if not hasattr(each["params"], "is_complex") else [each["params"]])
        else:
            yield each[1] if isinstance(each, tuple) else each
