"""What the user wants whatever it costs: layers that stay together, cuts that are forbidden, layers with a place."""

import numpy as np
from numpy.typing import NDArray

from pipeplan.cluster import Cluster, Device
from pipeplan.errors import InputError
from pipeplan.job import Job
from pipeplan.model import Model
from pipeplan.names import hint
from pipeplan.structure import Groups

Mask = NDArray[np.bool_]


class Wishes:
    """The job's wishes as masks over cuts and over layers on stages.

    Attributes
    ----------
    cuts : array of bool, shape (n − 1,)
        Whether a stage may end behind layer c.

    Raises
    ------
    InputError
        If a wish names a layer, a device or a kind that is not there.
    """

    def __init__(self, model: Model, cluster: Cluster, job: Job) -> None:
        self._index = {name: i for i, name in enumerate(model.names)}
        self._model = model
        self.cuts = np.ones(len(model.layers) - 1, np.bool_)
        for name in job.no_cut_after:
            self.cuts[self._layer(name) : self._layer(name) + 1] = False
        for names in job.together:
            places = [self._layer(name) for name in names]
            self.cuts[min(places) : max(places)] = False
        self._pins = [(self._layer(name), where) for name, where in job.pin]
        for _, where in self._pins:
            if not any(_is(device, where) for device in cluster.devices):
                known = sorted({device.kind.name for device in cluster.devices})
                raise InputError(
                    f"a layer is pinned to {where!r}, which is neither a device nor a kind of device of "
                    f"{cluster.name}{hint(where, known)}; devices are d0 to d{len(cluster.devices) - 1}, kinds: "
                    f"{', '.join(known)}"
                )

    @property
    def any(self) -> bool:
        """Whether anything is wished at all."""
        return bool(self._pins) or not self.cuts.all()

    def where(self, groups: Groups) -> Mask:
        """Whether layer i may lie on stage s, shape (S, n): a pinned one on stages that its device takes part in."""
        mask = np.ones((len(groups), len(self._index)), np.bool_)
        for layer, where in self._pins:
            mask[:, layer] = [any(_is(device, where) for device in group) for group in groups]
        return mask

    def _layer(self, name: str) -> int:
        if name not in self._index:
            near = hint(name, self._index)
            raise InputError(f"a wish names layer {name!r}, which {self._model.name} does not have{near}")
        return self._index[name]


def _is(device: Device, where: str) -> bool:
    return where in (device.kind.name, f"d{device.index}")
