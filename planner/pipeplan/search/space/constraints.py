"""User constraints: layers kept together, forbidden stage boundaries, layers pinned to devices."""

from copy import copy

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import Cluster, Device, StageDevices
from pipeplan.core.errors import InputError
from pipeplan.core.folding import Folding
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.wording import hint, teams_of

Mask = NDArray[np.bool_]


class Constraints:
    """The job's constraints as masks over stage boundaries and over layers on stages.

    Attributes
    ----------
    cuts : array of bool, shape (n − 1,)
        Whether a stage may end after layer c.

    Raises
    ------
    InputError
        If a constraint names an unknown layer, device or device kind, or contradicts another one.
    """

    def __init__(self, model: Model, cluster: Cluster, job: Job) -> None:
        self._index = {name: i for i, name in enumerate(model.names)}
        self._model, self._cluster, self._job, self._rounds = model, cluster, job, 1
        self.cuts = np.ones(len(model.layers) - 1, np.bool_)
        # Forbidden stage boundaries: after single layers, and between layers kept together.
        for name in job.no_cut_after:
            place = self._layer(name)
            if place == len(model.layers) - 1:
                raise InputError(
                    f"no_cut_after names {name!r}, the last layer of {model.name}, which ends the last stage in "
                    "every plan; leave it out"
                )
            self.cuts[place] = False
        for names in job.together:
            places = [self._layer(name) for name in names]
            self.cuts[min(places) : max(places)] = False
        # Pinned layers, with the name of their device or device kind.
        self._pins = [(self._layer(name), where) for name, where in job.pin]
        for _, where in self._pins:
            if not any(_is(device, where) for device in cluster.devices):
                known = sorted({device.kind.name for device in cluster.devices})
                raise InputError(
                    f"a layer is pinned to {where!r}, which is neither a device nor a kind of device of "
                    f"{cluster.name}{hint(where, known)}; devices are d0 to d{len(cluster.devices) - 1}, kinds: "
                    f"{', '.join(known)}"
                )
        self._check_pins()

    def folded(self, folding: Folding) -> "Constraints":
        """Return the constraints on super layers: a cut between them cuts all rounds, and a pin holds for all runs."""
        found, rounds = copy(self), range(folding.rounds)
        found._rounds = folding.rounds
        found.cuts = np.logical_and.reduce([self.cuts[folding.cuts(each)] for each in rounds])
        home = {layer: i for each in rounds for i, run in enumerate(folding.runs(each)) for layer in range(*run)}
        found._pins = [(home[layer], where) for layer, where in self._pins]
        return found

    @property
    def any(self) -> bool:
        """True if the job has any such constraint."""
        return bool(self._pins) or not self.cuts.all()

    @property
    def pinned(self) -> list[tuple[int, int]]:
        """Layers that are pinned to single devices, each with its device."""
        if not self._pins:
            return []
        devices = {f"d{device.index}": device.index for device in self._cluster.devices}
        kinds = {device.kind.name for device in self._cluster.devices}
        return [(layer, devices[where]) for layer, where in self._pins if where in devices and where not in kinds]

    def impossible(self, micro_batches: int) -> str | None:
        """Message why no plan can meet the constraints, whatever its costs; None if some plan may.

        Parameters
        ----------
        micro_batches : int
            The most micro-batches that a step may have.
        """
        # Too few devices or micro-batches for the least number of replicas.
        job, devices, layers = self._job, len(self._cluster.devices), len(self.cuts) + 1
        least = min(job.replicas, default=1)
        width = f"at least {least} replicas of each stage are asked for (replicas)"
        if least > devices:
            return f"No plan fits: {width}, and {self._cluster.name} has {devices} devices; ask for fewer."
        if least > micro_batches:
            return (
                f"No plan fits: {width}, and a step has at most {micro_batches} micro-batches for them to share; ask "
                "for fewer replicas, or for more and smaller micro-batches."
            )
        # Too few layers, devices or allowed boundaries for the least number of stages.
        if not job.depths or min(job.depths) <= min(int(self.cuts.sum()) + 1, devices // least):
            return None
        depth, rounds = min(job.depths), self._rounds
        asked = f"{_stages(rounds * depth)} or more are asked for (depths)"
        asked += f", {rounds} on each device" if rounds > 1 else ""
        if depth > layers:
            most = (
                f"has {layers} layers" if rounds == 1 else f"has layers for {rounds * layers} in {rounds} equal rounds"
            )
            return f"No plan fits: {asked}, and {self._model.name} {most}; ask for fewer stages."
        if depth * least > devices:
            each = f" of {least} replicas or more (replicas)" if least > 1 else ""
            return (
                f"No plan fits: {asked}{each}, and {self._cluster.name} has {devices} devices; ask for fewer stages"
                f"{' or replicas' if least > 1 else ''}."
            )
        names = " and ".join(name for name in ("together", "no_cut_after") if getattr(job, name))
        left = _stages(rounds * (int(self.cuts.sum()) + 1))
        return (
            f"No plan fits: {asked}, and {names} leave{'' if ' and ' in names else 's'} at most {left}, as "
            f"{int((~self.cuts).sum())} of the {layers - 1} cuts between the "
            f"{layers} layers of {self._model.name} are forbidden; ask for fewer stages, or allow more cuts."
        )

    def _check_pins(self) -> None:
        """Refuse pins to devices that cannot share a stage, for two layers that must be on one stage."""
        block = np.concatenate(([0], np.cumsum(self.cuts)))  # layers with equal numbers must be on one stage
        alone = self._job.replicas == (1,)  # else devices of one kind may share a stage
        places = {
            name: {device.index if alone else device.kind.name for device in self._cluster.devices if _is(device, name)}
            for name in {where for _, where in self._pins}
        }
        for n, (layer, where) in enumerate(self._pins):
            for other, place in self._pins[:n]:
                if block[layer] != block[other] or where == place:
                    continue
                if not places[place] & places[where]:
                    names = " and ".join(name for name in ("together", "no_cut_after") if getattr(self._job, name))
                    one = (
                        "and replicas allows one device per stage" if alone else "of another kind, and a stage has one"
                    )
                    raise InputError(
                        f"layer {self._model.names[other]!r} is pinned to {place!r} and layer "
                        f"{self._model.names[layer]!r} to {where!r}, {one}, but {names} puts both into one stage; drop "
                        "one of these constraints"
                    )

    def where(self, groups: StageDevices) -> Mask:
        """Mask of shape (S, n): layer i may be on stage s. Pinned layers only on stages with their device or kind."""
        mask = np.ones((len(groups), len(self.cuts) + 1), np.bool_)
        for layer, where in self._pins:
            mask[:, layer] = [any(_is(device, where) for device in group) for group in groups]
        return mask

    def _layer(self, name: str) -> int:
        if name not in self._index:
            near = hint(name, self._index)
            raise InputError(f"a constraint names layer {name!r}, which {self._model.name} does not have{near}")
        return self._index[name]


def _stages(count: int) -> str:
    return "1 stage" if count == 1 else f"{count} stages"


def _is(device: Device, where: str) -> bool:
    kind = device.kind
    return where in (kind.name, kind.members or kind.name, teams_of(kind.team), f"d{device.index}")
