"""`HandWritten`: a plan as it is written down, without costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

from pipeplan.core.choices import member
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown, whole
from pipeplan.core.job import SHARDED, Job, Objective, Recompute
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Placement
from pipeplan.core.wording import counted
from pipeplan.costs.chain import Boundaries
from pipeplan.schedules import PLACED, SLICED, Family, family, sliced_families
from pipeplan.schedules.family import FOUND, family_of
from pipeplan.search.space.in_flight import FREE
from pipeplan.search.space.space import LEANEST


@dataclass(frozen=True)
class HandWritten:
    """Stages of a plan, in order, and how they run.

    Attributes
    ----------
    stages : tuple of int
        Layers of each stage.
    micro_batches : int
    schedule : str
    replicas : tuple of int
        Devices of each stage; teams where ``team`` is more than one device.
    team : tuple of int
        Devices that share every layer of a stage, for each stage.
    way : str
        How teams split layers.
    chunks : int or None
        Stages per device, of a family that places several; None for its own number.
    recompute : Recompute
    zero : int
    token_slices : int
        Equal slices of a sequence.
    """

    stages: tuple[int, ...]
    micro_batches: int
    schedule: str
    replicas: tuple[int, ...]
    team: tuple[int, ...]
    way: str
    chunks: int | None
    recompute: Recompute
    zero: int
    token_slices: int = 1

    @classmethod
    def read(cls, stages: Any, replicas: Any, team: Any, recompute: Any, **rest: Any) -> "HandWritten":
        """Read the arguments of `judge`, as Python or the program gives them."""
        counts = _row(stages, "stages", "the number of layers of a stage")
        return cls(
            counts,
            replicas=_each(replicas, counts, "replicas", "the number of replicas of a stage"),
            team=_each(team, counts, "team", "the devices of a team"),
            recompute=member(recompute, "recompute", Recompute),
            **rest,
        )

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, str):
            raise InputError(f"schedule must be the name of one, not {shown(self.schedule)}")
        whole(self.micro_batches, "the number of micro-batches", 1)
        whole(self.zero, "zero", 0)
        whole(self.token_slices, "token_slices", 1)
        if self.token_slices > 1:
            self._check_slices()
        elif self.schedule in SLICED:
            raise InputError(
                f"schedule {self.schedule} runs token slices; say how many the plan has with token_slices "
                "(--token-slices 4)"
            )
        if self.chunks is not None:
            whole(self.chunks, "chunks (stages per device)", 1)
        if self.placed:
            self._check_placed()
            return
        own = self.family
        if self.chunks not in (None, 1):
            raise InputError(
                f"{self.chunks} chunks: schedule {own.name} gives a device one stage; several are placed by "
                f"{', '.join(PLACED)}"
            )
        if self.is_found:
            self._check_found()
        if max(self.replicas) > self.micro_batches:
            raise InputError(
                f"{max(self.replicas)} replicas of a stage share {counted(self.micro_batches, 'micro-batch')}, so that "
                "some have none; take more micro-batches, or fewer replicas"
            )

    def _check_slices(self) -> None:
        if self.schedule not in (FREE, *SLICED):
            raise InputError(
                f"schedule {self.schedule} runs whole sequences; {self.token_slices} token slices (token_slices) run "
                f"{' or '.join(SLICED)}"
            )
        if len({*self.replicas}) > 1 or len({*self.team}) > 1:
            raise InputError("token slices need as many replicas, and equal teams, in all stages; give one number each")

    def _check_placed(self) -> None:
        name = self.schedule
        if len(set(self.replicas)) > 1:
            raise InputError(
                f"schedule {name} gives a device several stages, whose replicas are those of whole pipelines; give one "
                "number"
            )
        if self.replicas[0] > self.micro_batches:
            raise InputError(
                f"{self.replicas[0]} replicas of the pipeline share {counted(self.micro_batches, 'micro-batch')}, so "
                "that some have none; take more micro-batches, or fewer replicas"
            )
        if len(set(self.team)) > 1:
            raise InputError(f"schedule {name} gives a device several stages, all with equal teams; give one size")
        if self.zero >= SHARDED:
            raise InputError(
                f"level {self.zero} of ZeRO runs one stage per device, and {name} places several; ask for 1"
            )
        if self.recompute is Recompute.CHOOSE:
            raise InputError(f"schedule {name} shares a device between stages; recompute none of the layers, or full")

    def _check_found(self) -> None:
        if len(set(self.replicas)) > 1:
            raise InputError(
                f"schedule {FOUND} is one order for all replicas of a pipeline; give all stages as many replicas"
            )
        if self.zero >= SHARDED:
            raise InputError(f"level {self.zero} of ZeRO has no orders to search; name a family, or ask for level 1")

    @property
    def is_found(self) -> bool:
        """Whether the order of actions is to be searched for."""
        return self.schedule == FOUND

    @property
    def placed(self) -> bool:
        """Whether the schedule places stages on devices itself."""
        return self.schedule in PLACED

    @property
    def family(self) -> Family:
        """The schedule's family, of stages with devices of their own."""
        if self.token_slices > 1:
            free, *others = sliced_families(self.token_slices)
            return next((each for each in others if each.name == self.schedule), free)
        return family(LEANEST if self.placed or self.is_found or self.schedule == FREE else self.schedule)

    @cached_property
    def placing(self) -> Family:
        """The family that places the stages itself, with its lists for all of them."""
        own, copies = PLACED[self.schedule], self.replicas[0]
        devices = (1 + max(number for ranks in self.homes for number in ranks)) // copies
        return family_of(own.write(devices, self.micro_batches, self.chunks, copies), own.summary)

    @cached_property
    def homes(self) -> Placement:
        """Devices, or teams, of each stage, counted from 0 in the order of the cluster."""
        if not self.placed:
            return tuple(tuple(range(a, b)) for a, b in pairwise(accumulate(self.replicas, initial=0)))
        own, depth = PLACED[self.schedule], len(self.stages)
        for devices in range(1, depth + 1):
            if own.even and devices % 2:
                continue
            if len(own.placement(devices, self.chunks)) == depth:
                return own.placement(devices, self.chunks, self.replicas[0])
        chunks = self.chunks or own.chunks or 2
        even = ", on an even number of devices" if own.even else ""
        raise InputError(
            f"schedule {self.schedule} gives every device {counted(chunks, 'stage')}{even}, and there are "
            f"{counted(depth, 'stage')}; write another number of stages"
            + (", or give the number per device (chunks)" if own.chunks is None else "")
        )

    def boundaries(self, model: Model) -> Boundaries:
        """The boundaries of the stages in the model's layers."""
        layers = len(model.layers)
        if sum(self.stages) != layers:
            raise InputError(
                f"the stages hold {' + '.join(map(str, self.stages))} = {sum(self.stages)} layers, and {model.name} "
                f"has {layers}; pipeplan show {model.name} lists them"
            )
        return (0, *accumulate(self.stages))

    def job(self, job: Job) -> Job:
        """The job without what is a matter of the plan."""
        if self.is_found and job.objective is not Objective.STEP:
            raise InputError(
                f"schedule {self.schedule} is judged by the time of a step; ask for the objective 'step', not "
                f"{job.objective.value!r}"
            )
        sizes = tuple(sorted(set(self.team)))
        return replace(
            job,
            micro_batches=(self.micro_batches,),
            schedules=(self.family.name,),
            depths=(),
            replicas=(),
            equal_replicas=False,
            regular=job.regular and len(sizes) == 1,
            recompute=self.recompute,
            zero=(self.zero,),
            slices=(self.token_slices,) if self.token_slices > 1 else (),
            teams=() if sizes == (1,) else sizes,
            unlike_teams=len(sizes) > 1,
        )

    def compared(self, job: Job, usual: tuple[int, ...]) -> Job:
        """The job of the proved plan: where it names no slices, chunks, or sizes of teams, also those of this plan.

        ``usual``: the sizes that are searched then.
        """
        if self.token_slices > 1 and not job.slices:
            job = replace(job, slices=(1, self.token_slices))
        if self.placed and not job.chunks and not job.schedules and job.objective.simulated and not job.staleness:
            job = replace(job, chunks=(1, self.chunks or PLACED[self.schedule].chunks or 2))
        sizes = {1, *usual, *self.team}
        if job.teams or set(self.team) == {1} or job.intra_layer or not job.objective.simulated:
            return job
        return replace(job, teams=tuple(sorted(sizes)), unlike_teams=len(set(self.team)) > 1 and not job.regular)


def _row(value: Any, name: str, what: str) -> tuple[int, ...]:
    """Return whole numbers in order, each as often as it is given."""
    if isinstance(value, str) and value:
        value = [int(each) if each.isdecimal() else each for each in value.split(",")]
    if not isinstance(value, list | tuple | range) or not value:
        raise InputError(f"{name} {shown(value)}: a number for each stage is needed, like 4,8,4")
    return tuple(whole(each, what, 1) for each in value)


def _each(value: Any, stages: Sequence[int], name: str, what: str) -> tuple[int, ...]:
    """Return a number for each stage: one number holds for all, none is 1."""
    if isinstance(value, str | tuple | list) and not value:
        return (1,) * len(stages)
    row = (whole(value, what, 1),) if isinstance(value, Integral) else _row(value, name, what)
    if len(row) == 1:
        return row * len(stages)
    if len(row) != len(stages):
        raise InputError(
            f"{name}: {len(stages)} stages have {len(row)} numbers; give one number for each stage, or one for all"
        )
    return row
