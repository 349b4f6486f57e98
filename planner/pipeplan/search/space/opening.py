"""`Opening`: the teams of one size, until their ways to split layers are priced and their spaces are open."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pipeplan.core.errors import InputError
from pipeplan.core.model import Model
from pipeplan.core.splits import Split
from pipeplan.costs.sharding.question import AnyQuestion, Questions, TeamQuestion
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.sentinels import UNLIMITED

if TYPE_CHECKING:
    from pipeplan.costs.sharding.ways import Asked
    from pipeplan.search.space.unopened import Unopened

Opened = TypeVar("Opened", covariant=True)
"""What has the spaces of a question: `Spaces`."""


class HasModel(Protocol):
    """A way to split layers: its question, or its spaces."""

    @property
    def model(self) -> Model:
        """The costs of one member of a team."""


Way = TypeVar("Way", bound=HasModel)


@dataclass(eq=False)
class Opening(Generic[Opened]):
    """Teams of one size, or of several that are mixed.

    Attributes
    ----------
    sizes : tuple of int
    least : Unopened
        Bounds before the ways are priced.
    questions : Questions
    enter : callable
        Adds the spaces of a question, and returns them; None for mixes.
    finish : callable
        Opens the mixes once all ways are known, and yields their spaces if they have some.
    mixed : bool
        Whether stages may have teams of unlike sizes, single devices among them.
    clock : Clock or None
        The time in which to open them.
    done : bool
        Whether all ways are open.
    left : bool
        Whether they are left unpriced, as they have next to nothing to gain.
    refused : InputError or None
        Why there are none.
    """

    sizes: tuple[int, ...]
    least: "Unopened"
    questions: Questions
    enter: Callable[[AnyQuestion], Opened | None]
    finish: Callable[[], Iterator[Opened]]
    mixed: bool
    clock: Clock | None = None
    done: bool = field(default=False, init=False)
    left: bool = field(default=False, init=False)
    refused: InputError | None = field(default=None, init=False)
    _over: bool = field(default=False, init=False)

    @property
    def bound(self) -> int:
        """A lower bound in nanoseconds on all plans of these teams, as far as it is known."""
        return self.raised(0)

    @property
    def refuted(self) -> bool:
        """Whether it is known before ways are priced that no plan of these teams fits."""
        return self.bound >= UNLIMITED

    def raised(self, enough: int) -> int:
        """Return the bound, raised until it is ``enough`` or cannot be raised; that of mixes is found at once."""
        bounds = [self.least.of_team(team, enough) for team in self.sizes]
        return min([*bounds, *([self.least.of_mixes] if self.mixed else [])])

    def open(self, cutoff: int | None = None) -> Iterator[Opened]:
        """Open the ways one by one and yield the spaces of each, until the clock is over.

        With a ``cutoff`` only between placements, and at micro-batch sizes, whose bound is below so many nanoseconds.
        """
        if self._over:
            return
        self._over = True  # an interrupted iterator has lost what it was about to find
        try:
            for question in self._priced(None if cutoff is None else self.least.steps_of(self.sizes[0]).below(cutoff)):
                spaces = self.enter(question)
                if spaces is not None:
                    yield spaces
                if self.clock is not None:
                    self.clock.check()
        except OutOfTimeError:
            return
        yield from self.finish()
        self.done = True

    def leanest(self) -> list[TeamQuestion]:
        """Return the `leanest` ways at the least micro-batch size; nothing if there is no time to price any."""
        size = min(min(self.least.ways[team].teams.sizes) for team in self.sizes)
        known: list[TeamQuestion] = []
        with suppress(OutOfTimeError):
            asked = [each for team in self.sizes for each in self.least.steps_of(team).at(size)]
            known += (each for each in self._priced(asked) if isinstance(each, TeamQuestion))
        return leanest(known)

    def _priced(self, asked: "Asked | None") -> Iterator[AnyQuestion]:
        """The questions; none where nothing can be split."""
        try:
            yield from self.questions(asked)
        except InputError as error:
            self.refused = error


def leanest(ways: Sequence[Way]) -> list[Way]:
    """Return the ways with the least bytes of parameters, and the least saved in a pass on the first kind of device."""

    def lean(way: Way) -> tuple[int, int]:
        costs = way.model.profiles[0].costs
        return sum(layer.parameters for layer in way.model.layers), sum(cost.saved for cost in costs)

    return [min(ways, key=lambda way: lean(way)[::order]) for order in (1, -1)] if ways else []


def given(questions: Sequence[AnyQuestion], sizes: Sequence[int], mixed: bool) -> Questions:
    """Return the `Questions` of these sizes, or of all and of mixes, among those that were found before."""

    def of_sizes(_: "Asked | None") -> Iterator[AnyQuestion]:
        for each in questions:
            if mixed or (isinstance(each, TeamQuestion) and isinstance(each.split, Split) and each.split.team in sizes):
                yield each

    return of_sizes
