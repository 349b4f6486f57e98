"""Values that constructors give to tensors for which nothing else has a rule: layer scales, tables of positions.

The model is built for real, under the seed, and emptied while it grows, so that one submodule at a time takes memory::

    nn.Linear(…)                     has reset_parameters, so it can be drawn alone
    Block.__init__     self.fc = …   real
    Model.__init__     block = …     block.fc becomes meta; block.scale, which has no rule, stays
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from pipeplan.frontend.blank import emptied_while_built
from pipeplan.frontend.parameters import named_tensors
from pipeplan_executor.stages.seeds import derive

Built = TypeVar("Built")


def built(build: Callable[[], Built], seed: int = 0, *, whole: bool = False) -> Built:
    """Return what ``build`` builds on the CPU, the same in every process.

    Unless ``whole``, modules lose what they can draw themselves as soon as they are inside another one's submodule.
    A constructor may read such values; then nothing is lost.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        if not whole:
            try:
                torch.manual_seed(derive(seed, "weights"))
                with emptied_while_built():
                    return build()
            except Exception:  # the same error comes again if it has another reason
                pass
        torch.manual_seed(derive(seed, "weights"))
        return build()


@dataclass
class Constructed:
    """Values of tensors in a model that is built for real.

    Parameters
    ----------
    build : callable
        Builds the model.
    """

    build: Callable[[], nn.Module]
    _kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def values(self, names: Iterable[str], seed: int) -> dict[str, Tensor]:
        """Return the tensors with these names. Each depends on the seed and the model only, not on the other names."""
        wanted = set(names)
        if seed not in self._kept:
            self._kept[seed] = _values(built(self.build, seed))
        found = {name: tensor for name, tensor in self._kept[seed].items() if name in wanted}
        lost = wanted - found.keys()
        if lost:
            everything = _values(built(self.build, seed, whole=True))
            found |= {name: everything[name].clone() for name in lost & everything.keys()}
        return found


def _values(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in named_tensors(module) if not tensor.is_meta}
