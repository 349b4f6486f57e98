"""`Rounds`: how many stages of a device a job asks for, and the families that run them in loops or in a V."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import product

from pipeplan.core.changed import changed
from pipeplan.core.cluster import Cluster, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.folding import Laid
from pipeplan.core.job import SHARDED, Job, Objective
from pipeplan.core.model import Model
from pipeplan.core.wording import counted
from pipeplan.costs.folded import folded, usual_rounds
from pipeplan.schedules import PLACED, SLICED, SPLIT, families_in_rounds, family
from pipeplan.search.space.candidates import Candidate

BY_DEFAULT = "interleaved"
HALVED = ("zb-h1", "zb-h2", "zb-v", "dualpipe-v")
"""The families of several stages of a device, and of split backwards, that are searched where none is named. V-Half and
V-Min hold less, and wait longer for it."""

LONGER = Fraction(6, 5)
"""Most of the time of joined backwards that their two parts may take together for backwards to be split by default.

Splits that were measured took 0.92 to 1.17 of it (docs/measurements.md). Beyond, they fill no more than what they add:
a fifth of the backwards is an eighth of all work, as much as a pipeline is idle with 8 samples for each device.
"""


class Rounds:
    """What a job asks about the stages of a device.

    Attributes
    ----------
    numbers : tuple of int
        Of stages of a device: those asked for, or the usual ones and those of families that are named.
    halved : bool
        Whether families that split backwards are searched although none is named.
    why_whole : str
        Why they are not, where others of several stages of a device are.
    whole : bool
        Whether a device may have one stage, under a family that leaves stages where they are.

    Raises
    ------
    InputError
        If families that place stages are named where no plan has their order, or several stages in other orders.
    """

    def __init__(self, model: Model, cluster: Cluster, job: Job, halved: bool | None = None) -> None:
        self._model, self._cluster, self._job = model, cluster, job
        self._named = [name for name in job.schedules if name in PLACED]
        self._inner = model.folding is not None or model.slicing is not None  # parts of another question
        usual = usual_rounds(model, cluster, job)
        implied = (PLACED[name].chunks or 2 for name in self._named)
        self.numbers = job.chunks or tuple(dict.fromkeys([*usual, *implied]))
        asks = not self._inner and not job.chunks and len(usual) > 1
        self.why_whole = why_whole(model, cluster) if asks and halved is None else ""
        self.halved = asks and not self.why_whole and halved is not False
        others = not job.schedules or bool({*job.schedules} - {*PLACED, *SLICED})
        self.whole = self._inner or (1 in self.numbers and others)
        if not self._inner:
            self._check()

    def _check(self) -> None:
        job, named = self._job, self._named
        for name in named:
            if not PLACED[name].in_rounds:
                family(name)  # which says what it does
        if named and not job.objective.simulated:
            raise InputError(
                f"schedule {named[0]!r} shortens steps; ask for the objective 'step' or 'period', not "
                f"{job.objective.value!r}"
            )
        check_alternating(named if job.staleness else ())
        if max(job.chunks, default=1) > 1 and job.schedules and not named:
            raise InputError(
                f"{max(job.chunks)} stages of a device (chunks) run in the order of a family that places them, not in "
                f"{' or '.join(job.schedules)}; name {BY_DEFAULT!r} too, or leave the schedules out"
            )
        check_halves(self._model, self._cluster, changed(job, schedules=tuple(named)))

    def check_unlike(self) -> None:
        """Refuse rounds that are cut unlike where they are not searched.

        Raises
        ------
        InputError
        """
        if self._inner or not self._job.unlike_rounds:
            return
        if self._job.objective is not Objective.STEP:
            raise InputError(
                "rounds are cut unlike (unlike_rounds) for the objective 'step', not "
                f"{self._job.objective.value!r}; drop one"
            )
        cluster, kinds = self._cluster, [kind.name for kind, _ in self._cluster.counts]
        if len(kinds) > 1:
            raise InputError(
                f"rounds are cut unlike (unlike_rounds) on devices of one kind, and {cluster.name} has "
                f"{' and '.join(kinds)}; drop unlike_rounds"
            )
        if cluster.overlap is not Overlap.COPY:
            raise InputError(
                f"rounds are cut unlike (unlike_rounds) where tensors leave behind their action (overlap 'copy'), and "
                f"that of {cluster.name} is {cluster.overlap.value!r}; drop unlike_rounds"
            )
        if max(self.numbers) == 1:
            raise InputError(
                "unlike_rounds is about several stages of each device, which are not searched here; ask for some "
                "(chunks), like 2"
            )

    def __iter__(self) -> Iterator[Laid]:
        """Yield the ways to lay stages for which there are families."""
        if self._inner or not self._job.objective.simulated or self._job.staleness:
            return
        every = (Laid(rounds, turns) for rounds, turns in product(self.numbers, (False, True)))
        alike = [each for each in every if self.order(each)]
        yield from alike
        for each in alike if self._job.unlike_rounds else ():
            yield from (each._replace(lengths=lengths) for lengths in self._lengths(each))

    def _lengths(self, laid: Laid) -> Iterator[tuple[int, ...]]:
        """Yield layers of rounds that are cut unlike: equally many, and in loops what some devices share evenly.

        A loop takes as long as the longest stage of each round. So where rounds that are cut alike have longer ones,
        they share the layers of the device that has most, and the first one has the rest.
        """
        rounds, blocks = laid.rounds, self._model.blocks
        layers, alike = blocks[-1] - blocks[0], blocks[(len(blocks) - 1) // rounds] - blocks[0]
        if rounds == 1 or alike < 2:  # too few for two devices
            return
        found = [tuple(len(range(number, layers, rounds)) for number in range(rounds))]
        for devices in range(2, min(len(self._cluster.devices), layers // rounds) + 1):
            most = -(-layers // devices)
            later = [devices * len(range(number, most, rounds)) for number in range(1, rounds)]
            rest = layers - sum(later)
            if not laid.turns and rounds * -(-alike // devices) > most and rest >= devices:
                found.append((rest, *later))
        yield from dict.fromkeys(found)

    def order(self, laid: Laid) -> tuple[str, ...]:
        """Return the families that lay stages so, of those that are named or searched by default."""
        asked = self._named or (BY_DEFAULT, *HALVED * self.halved)
        return tuple(each.name for each in families_in_rounds(laid.rounds, laid.turns) if each.name in asked)

    def splits(self, laid: Laid) -> bool:
        """Return whether stages that lie so have families of split backwards."""
        return any(PLACED[name].splits for name in self.order(laid))

    def question(self, laid: Laid, job: Job) -> tuple[Model, Job]:
        """Return the model of super layers, and the part of a job that is about them.

        Raises
        ------
        InputError
            If no plan has so many stages of a device.
        """
        many, model, turns = self._model, folded(self._model, laid), laid.rounds
        if min(job.zero, default=0) >= SHARDED:
            raise InputError(
                f"{counted(turns, 'stage')} of a device (chunks) are planned at levels 0 and 1 of ZeRO (zero), not "
                f"{min(job.zero)}; drop one"
            )
        if model is None:
            blocks = len(many.blocks) - 1
            raise InputError(
                f"{counted(turns, 'stage')} on each of two devices or more (chunks) need {2 * turns} layers, and "
                f"{many.name} has {blocks}; ask for {max(blocks // 2, 1)} or fewer"
            )
        devices = len(self._cluster.devices)
        if devices == 1:
            raise InputError(f"{counted(turns, 'stage')} of a device (chunks) need two devices, and there is one")
        depths = job.depths or range(2 * turns, turns * min(devices, len(model.layers)) + 1)
        depths = tuple(depth // turns for depth in depths if depth % turns == 0 and depth > turns)
        if not depths:
            raise InputError(
                f"{counted(turns, 'stage')} on each of two devices or more (chunks) make a multiple of {turns} in all; "
                f"asked for are {', '.join(map(str, job.depths))} (depths)"
            )
        own = changed(job, chunks=(), teams=(), unlike_teams=False, schedules=self.order(laid), depths=depths)
        return model, own

    def none(self) -> InputError:
        """Return the error of schedules that give no device so many stages."""
        own = ", ".join(f"{name} {PLACED[name].chunks or 'several'}" for name in self._named)
        counts = " or ".join(map(str, self.numbers))
        return InputError(f"none of the schedules gives a device {counts} stages (chunks): they give it {own}")

    def without(self, candidate: Candidate) -> str:
        """Return a message that no plan has so many stages of a device, or such a family."""
        if candidate.chunks not in self.numbers:
            counts = ", ".join(map(str, self.numbers))
            return f"a device has {counted(candidate.chunks, 'stage')}, asked for are {counts} (chunks)"
        return f"its schedule is {candidate.family.name}, which is searched where it is named (schedules)"


def check_alternating(names: Iterable[str]) -> None:
    """Refuse families whose orders do not go on from batch to batch.

    Raises
    ------
    InputError
    """
    for name in names:
        if name in PLACED or not family(name).alternates:
            raise InputError(
                f"schedule {name!r} ends with every batch, and staleness 1 goes on to the next one without a flush, as "
                "only families of 1F1B do; leave the schedule out"
            )


def why_whole(model: Model, cluster: Cluster) -> str:
    """Return why backwards are not split by default; empty if profiles know both parts, and these are not too long."""
    timed = {kind.timed_as or kind.name for kind in cluster.kinds.values()}
    for profile in model.profiles:
        if profile.device in timed:
            parts = [cost.input_gradient + cost.weight_gradient for cost in profile.costs]
            whole = [cost.backward for cost in profile.costs]
            if any(joined and not own for own, joined in zip(parts, whole, strict=True)):
                return f"the profile on {profile.device} does not know the time of both parts"
            if sum(parts) > LONGER * sum(whole):
                return f"both parts take {sum(parts) / sum(whole):.2f} times as long as whole ones on {profile.device}"
    return ""


def split_families(job: Job) -> list[str]:
    """Return the named families that split backwards into input and weight gradients."""
    return [name for name in job.schedules if name in SPLIT or (name in PLACED and PLACED[name].splits)]


def check_halves(model: Model, cluster: Cluster, job: Job) -> None:
    """Refuse families of split backwards, if any is named, where parts of backwards have no times, or are no matter.

    Raises
    ------
    InputError
    """
    named = split_families(job)
    if named and job.objective is not Objective.STEP:
        raise InputError(
            f"schedule {named[0]!r} splits backwards, which is searched for the least step; ask for the objective "
            f"'step', not {job.objective.value!r}"
        )
    rows = [(profile.device, profile.costs) for profile in model.profiles]
    rows += [(own.device, costs) for own in model.slice_profiles for costs in (own.first, own.last)]
    for device, costs in rows if named else ():
        for name, cost in zip(model.names, costs, strict=True):
            if device in cluster.kinds and cost.backward and not cost.input_gradient + cost.weight_gradient:
                raise InputError(
                    f"schedule {named[0]!r} splits backwards, and the profile of {model.name} on {device} has "
                    f"no times of the two parts of layer {name!r}; give it input_gradient and weight_gradient, or name "
                    "other schedules"
                )
