"""`Spaces`: one `Space` for each level of ZeRO, split over teams and number of slices of a job, searched together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain

from pipeplan.core.changed import changed
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.folding import Laid
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.model import Model
from pipeplan.core.splits import Mix, Splitting
from pipeplan.costs.chain import Boundaries
from pipeplan.costs.cost_tables import Tables
from pipeplan.costs.sharding.question import AnyQuestion, MixedQuestion, TeamQuestion
from pipeplan.costs.sharding.usual import usual_teams
from pipeplan.costs.slices import sliced
from pipeplan.schedules import SLICED, asked_sliced_families, family
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.space import outside
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.levels import at_level, named_levels, worthwhile
from pipeplan.search.space.mixed import MixedSpace
from pipeplan.search.space.mixes import Mixes
from pipeplan.search.space.opening import Opening, given, leanest
from pipeplan.search.space.rounds import Rounds, check_halves
from pipeplan.search.space.space import ANY, Space
from pipeplan_formulations.common.clock import Clock


class Spaces:
    """The spaces of a job's levels of ZeRO, the lowest level first.

    A job that names no level has those that can be planned for it and that share out something:

    ====== ================================================ ================================================
    level  shares out, besides what lower levels do         left out
    ====== ================================================ ================================================
    0      nothing                                          never
    1      the update, and the optimiser's state            for the bottleneck
    2      gradients                                        where it cannot be planned (`Job`, `Space`)
    3      parameters                                       where it cannot be planned
    ====== ================================================ ================================================

    Without replicas all levels are alike, so only level 0 is left.

    Teams of several devices have spaces of their own for each split that is worth searching: there a device is a team
    (`pipeplan.costs.sharding`). Mixes of teams of unlike sizes, at levels 0 and 1, are searched together
    (`MixedSpace`), and a mix gets spaces of its own once a plan lies on it. Under any order of schedules, mixes that
    are few have them all from the beginning.

    Numbers of token slices have spaces of their own (`sliced`), at levels 0 and 1 and for teams of one size. There a
    sample is a slice of a sequence, and teams are asked about the model of such samples (`pipeplan.costs.slices`).

    Attributes
    ----------
    job : Job
        With the sizes of teams that are searched, also where the asked one names none (`usual_teams`).
    usual : bool
        Whether the asked job names no sizes of teams, and there are some.
    openings : tuple of Opening
        The teams of several devices by size, of all numbers of slices. Named ones are open from the beginning, unless
        there is a clock to open them by.
    teams : dict of Splitting to Spaces
        The spaces of each split, and of the mixes that are searched by themselves; they come after the others.
    rounds : Rounds
        What the job asks about the stages of a device.
    sliced : dict of int to Spaces
        The spaces of each number of token slices but 1; they come last.

    Raises
    ------
    InputError
        If the job contradicts itself, the model or the cluster; for levels that it names, also if they do.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        job: Job,
        split: Splitting | None = None,
        questions: tuple[AnyQuestion, ...] | None = None,
        opening: Clock | None = None,
        halved: bool | None = None,
        tables: Tables | None = None,
    ) -> None:
        job = job.of(model)
        if model.slicing is not None or model.folding is not None:
            job = changed(job, zero=tuple(level for level in job.zero if level < SHARDED))
        self._asked = job
        if split is None and model.folding is None and not job.teams:
            job = changed(job, teams=usual_teams(model, cluster, job))
        self.usual = job.teams != self._asked.teams
        self.model, self.cluster, self.job, self.split = model, cluster, job, split
        self._spaces: dict[int, Space] = {}
        self._tables: Tables = {} if tables is None else tables  # of all levels
        self.teams: dict[Splitting, Spaces] = {}
        for name in self.job.schedules if model.slicing is None and max(job.slices, default=1) == 1 else ():
            if name in SLICED:
                family(name)  # which says that it takes slices
        self.sliced = {count: self._of_slices(count, questions, opening) for count in self._counts if count > 1}
        opens = model.slicing is not None or 1 in self._counts
        self._alone = opens and (not job.teams or 1 in job.teams)
        self.rounds = Rounds(model, cluster, self.job, halved)
        self._unlaid: InputError | None = None
        self._folded: dict[Laid | None, Spaces | None] = {}
        if split is None:
            self.rounds.check_unlike()
            self.folded  # noqa: B018  # so that their errors come first
        if self._alone and self.rounds.whole:
            self._spaces |= self._levels()
        self._questions: tuple[AnyQuestion, ...] = ()
        self._mixes: Mixes[Spaces] = Mixes(self._of_mix)
        self._clock = opening
        self._openings = tuple(self._every_opening(questions)) if opens and max(job.teams, default=1) > 1 else ()
        if opening is None and not self.usual:
            for each in self._openings:
                for _ in each.open():
                    pass
            self.require_some()
        elif split is None and not self._openings:
            self.require_some()

    @cached_property
    def folded(self) -> dict[Laid, "Spaces"]:
        """The spaces of each way to lay several stages on a device of which there are plans."""
        found = {laid: own for laid in self.every_laid if (own := self.at(laid)) is not None}
        if self._alone and not self.rounds.whole and self._unlaid is None:
            self._unlaid = self.rounds.none()
        return found

    @cached_property
    def every_laid(self) -> tuple[Laid, ...]:
        """The ways to lay several stages on a device for which there are families."""
        return tuple(self.rounds) if self._alone else ()

    def at(self, laid: Laid | None) -> "Spaces | None":
        """The spaces of a way to lay stages, made when they are asked for; None if no plan lies so."""
        if laid not in self._folded:
            self._folded[laid] = None
            if laid is not None and laid in self.every_laid:
                try:
                    model, job = self.rounds.question(laid, self._own_job)
                    own = Spaces(model, self.cluster, job, self.split, tables=self._tables)
                    if not laid.unlike or all(space.few or space.evenly for space in own):  # as rows are bounded
                        self._folded[laid] = own
                except InputError as error:
                    self._unlaid = self._unlaid or error
        return self._folded[laid]

    @property
    def _counts(self) -> tuple[int, ...]:
        """The numbers of slices in which sequences may run here; none where they are cut already."""
        if self.model.slicing is not None:
            return ()
        cut = bool(self.job.schedules) and set(self.job.schedules) <= {*SLICED}
        return tuple(count for count in self.job.slices or (1,) if count > 1 or not cut)

    def _of_slices(self, count: int, questions: tuple[AnyQuestion, ...] | None, opening: Clock | None) -> "Spaces":
        """The spaces of a number of token slices."""
        check_halves(self.model, self.cluster, self.job)
        asked_sliced_families(count, self.job.schedules)  # so that its error comes before teams are open
        job = changed(self._asked, slices=(count,), context_parallel=False, unlike_teams=False)
        return Spaces(sliced(self.model, count), self.cluster, job, questions=questions, opening=opening)

    def _every_opening(self, questions: Sequence[AnyQuestion] | None) -> Iterator[Opening["Spaces"]]:
        """One for each size of teams; if stages may have teams of unlike sizes, one for all."""
        from pipeplan.search.space.unopened import Unopened  # models without operators have no teams

        own, unlike = self._own_job, self.job.unlike_teams and self.rounds.whole
        least = Unopened(self.model, self.cluster, own, self._clock, self.rounds.halved)
        known = None if questions is None else [each for each in questions if each.job.slices == own.slices]
        for sizes in [least.sizes] * bool(least.sizes) if unlike else [(size,) for size in least.sizes]:
            asked = least.asking(sizes, unlike) if known is None else given(known, sizes, unlike)
            yield Opening(sizes, least, asked, self._enter, self._open_mixes, unlike, self._clock)

    @property
    def openings(self) -> tuple[Opening["Spaces"], ...]:
        """Those of the teams of several devices, by number of slices and by size."""
        return (*self._openings, *(each for own in self.sliced.values() for each in own.openings))

    @property
    def late(self) -> bool:
        """Whether some teams are not open, as with the clock over; usual ones of which no plan fits need not be."""
        return not all(each.done or (each.refuted and self.usual) for each in self.openings)

    @property
    def questions(self) -> tuple[AnyQuestion, ...]:
        """The questions with teams that are open: to find the splits worth searching takes time.

        ``job.slices`` says in how many slices.
        """
        return self._questions + tuple(each for own in self.sliced.values() for each in own.questions)

    def enter(self, questions: Sequence[AnyQuestion]) -> None:
        """Add the spaces of questions with teams that were opened elsewhere."""
        for home in (self, *self.sliced.values()):
            own = [each for each in questions if each.job.slices == home._own_job.slices]
            for question in own:
                home._enter(question)
            if any(isinstance(each, MixedQuestion) for each in own):
                for _ in home._open_mixes():
                    pass

    def _enter(self, question: AnyQuestion) -> "Spaces | None":
        """Add the spaces of a question; of mixes none yet."""
        if isinstance(question, TeamQuestion):
            try:
                own = Spaces(question.model, question.cluster, question.job, question.split, halved=self.rounds.halved)
            except InputError:
                if self.usual:  # nobody asked for them
                    return None
                raise
            if any(True for _ in own):  # else there are too few teams for several stages each
                self.teams[question.split] = own
            self._unlaid = self._unlaid or own._unlaid
        self._questions += (question,)
        return self.teams.get(question.split) if isinstance(question, TeamQuestion) else None

    def _open_mixes(self) -> Iterator["Spaces"]:
        """Add the mixes once all ways are known, and yield the spaces of those that are searched by themselves."""
        every = [question for question in self._questions if isinstance(question, MixedQuestion)]
        if ANY not in self.job.schedules:
            self._mixes.search_together(every)
            return
        for mix, own in self._mixes.each(every):
            self.teams[mix] = own
            yield own

    def _of_mix(self, question: MixedQuestion, mix: Mix) -> "Spaces | None":
        """The spaces of a mix; None if it has no device where a layer is pinned to, or shared weights lie."""
        own = question.mix(mix)
        with suppress(InputError):
            return Spaces(own.model, own.cluster, own.job, mix, halved=self.rounds.halved)
        return None

    @property
    def mixed(self) -> tuple[MixedSpace, ...]:
        """The mixes that are searched together."""
        return self._mixes.together

    def require_some(self) -> None:
        """Raise the error of teams over which nothing can be split, or of stages, if nothing else was asked for."""
        refused = [each.refused for each in self.openings if each.refused is not None]
        alone = not any(True for _ in self) or bool(self.job.strategy)
        if refused and alone and len(refused) == len(self.openings):
            raise refused[0]
        refused += [self._unlaid] if self._unlaid is not None else []
        if refused and self.split is None and not any(True for _ in self):
            raise refused[0]

    @property
    def unopened(self) -> int | None:
        """A lower bound in nanoseconds on plans of teams that are not open yet; None if all are."""
        return min((each.bound for each in self.openings if not each.done), default=None)

    @property
    def least(self) -> int:
        """A lower bound in nanoseconds on all plans, open or not: the work of each shared evenly over all devices."""
        own = self._spaces.values() or chain(*self.folded.values())  # it is the same work in several rounds
        bounds = [space.lower_bounds(size).evenly_shared(space.cluster) for space in own for size in space.sizes]
        bounds += [each.least for each in (*self.teams.values(), *self.sliced.values())]
        return min([*bounds, *([] if self.unopened is None else [self.unopened])], default=0)

    def _home(self, split: Splitting) -> "Spaces | None":
        """The spaces of a split, or of a mix that may be new; None if it is not searched."""
        if split not in self.teams and isinstance(split, Mix):
            return self._mixes.find(split)
        return self.teams.get(split)

    def _levels(self) -> dict[int, Space]:
        """The space of each level of ZeRO that is named, or else worth searching."""

        named = named_levels(self.job)

        def space(level: int) -> Space:
            job = at_level(self._own_job, level, self.model, self.cluster)
            return Space(self.model, self.cluster, job, self.split, self._tables, shares=level > named[0])

        found = {level: space(level) for level in named}
        for level in () if self.job.zero else worthwhile(found[named[0]]):
            with suppress(InputError):
                found[level] = space(level)
        return found

    @cached_property
    def _own_job(self) -> Job:
        """The job of the model's own samples: without slices and their families, unless it has been cut."""
        whole = tuple(name for name in self.job.schedules if name not in SLICED)
        return self.job if self.model.slicing is not None else changed(self.job, slices=(), schedules=whole)

    def __iter__(self) -> Iterator[Space]:
        yield from self._spaces.values()
        yield from chain(*self.folded.values(), *self.teams.values(), *self.sliced.values())

    @property
    def in_one_round(self) -> Iterator[Space]:
        """The spaces in which a device has one stage."""
        yield from self._spaces.values()
        for own in (*self.teams.values(), *self.sliced.values()):
            yield from own.in_one_round

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels, ascending; if all plans have teams or slices, those of the first split, or number of slices."""
        return tuple(self._spaces) or self._first.levels

    @property
    def _first(self) -> "Spaces":
        return next(chain(self.folded.values(), self.teams.values(), self.sliced.values()))

    @property
    def lowest(self) -> Space:
        """The first space, of the lowest level: of all that depends neither on levels nor on teams, it will do."""
        return next(iter(self))

    @property
    def lean(self) -> Iterator[Space]:
        """The spaces in which plans need least memory: without several stages of a device, if there are any.

        Of teams the `leanest` ways, also of those that are not open as no plan of theirs fits.
        """
        if not any(True for _ in self.in_one_round):
            yield from self
        yield from self._spaces.values()
        for own in self.sliced.values():
            yield from own.lean
        sizes: dict[object, list[Spaces]] = {}
        for split, own in self.teams.items():
            sizes.setdefault(split if isinstance(split, Mix) else split.sizes, []).append(own)
        for own in chain.from_iterable(map(leanest, sizes.values())):
            yield from own.in_one_round
        for question in chain.from_iterable(
            each.leanest() for each in self._openings if each.refuted and not each.done
        ):
            with suppress(InputError):
                yield from Spaces(question.model, question.cluster, question.job, question.split).in_one_round

    def __getitem__(self, level: int) -> Space:
        return self._spaces[level]

    def __contains__(self, level: int) -> bool:
        return level in self._spaces

    @cached_property
    def unsharded(self) -> tuple[Space, ...]:
        """The spaces of levels 0 and 1, at which heuristics are tried; all of them if there are none."""
        every = tuple(self._spaces.values()) or self._first.unsharded
        return tuple(space for space in every if space.job.level < SHARDED) or every

    def outside(self, evaluated: EvaluatedPlan) -> str | None:
        """Message why a plan lies outside all spaces or does not fit; None if it is a valid answer."""
        return self._within(evaluated.candidate, lambda space: outside.outside(space, evaluated))

    def unasked(self, candidate: Candidate, boundaries: Boundaries) -> str | None:
        """Message why a plan lies outside all spaces, without regard to memory; None if it lies in one."""
        return self._within(candidate, lambda space: outside.unasked(space, candidate, boundaries))

    def _within(self, candidate: Candidate, check: Callable[[Space], str | None]) -> str | None:
        """What a check says of a candidate's space, unless it has nothing to say of that whose rounds are unlike."""
        message = self._teamless(candidate) or check(self.of(candidate))
        if message is None or candidate.laid is None or not self.job.unlike_rounds:
            return message
        others = (each.lengths for each in self.rounds if each.unlike and each[:2] == candidate.laid[:2])
        spaces = (self.of(candidate, lengths) for lengths in others)
        return None if any(space.unlike_rounds and check(space) is None for space in spaces) else message

    def _teamless(self, candidate: Candidate) -> str | None:
        """Message if a plan has single devices, such as one of a level that is not searched, and all have teams."""
        if candidate.chain.slices in self.sliced:
            return self.sliced[candidate.chain.slices]._teamless(candidate)
        if self._counts and 1 not in self._counts:
            return f"its sequences stay whole, asked for are {', '.join(map(str, self._counts))} token slices"
        split = candidate.chain.split
        home = self if split == self.split else self._home(split) if split is not None else None
        if home is not None and (candidate.laid is not None or (not home._spaces and home.folded)):
            return None if home.at(candidate.laid) is not None else self.rounds.without(candidate)
        if self._spaces or (split is not None and home is not None):
            return None
        return f"it has no teams, asked for are teams of {', '.join(map(str, self.job.teams))}"

    def of(self, candidate: Candidate, lengths: tuple[int, ...] = ()) -> Space:
        """The space of a candidate's split and level; without such a level, or without replicas, the lowest.

        ``lengths``: that in which rounds of so many layers are cut unlike.
        """
        split = candidate.chain.split
        home = None if split is None else self._home(split)
        home = self.sliced.get(candidate.chain.slices, home)
        if home is not None and home is not self:
            return home.of(candidate, lengths)
        laid = candidate.laid
        if (own := self.at(laid and laid._replace(lengths=lengths))) is not None:
            return own.of(candidate, lengths)
        return self._spaces.get(candidate.chain.zero if max(candidate.replicas) > 1 else -1, self.lowest)

    def cluster_of(self, candidate: Candidate) -> Cluster:
        """The cluster of a candidate's devices, which are teams where it has a split."""
        return self.of(candidate).cluster

    def find(self, split: Splitting | None, level: int, slices: int = 1, laid: Laid | None = None) -> Space | None:
        """The space of a `Space.key`; None if it is not searched."""
        if slices in self.sliced:
            return self.sliced[slices].find(split, level, laid=laid)
        home = self._home(split) if split is not None else self
        home = home if home is None or laid is None else home.at(laid)
        return None if home is None else home._spaces.get(level)
