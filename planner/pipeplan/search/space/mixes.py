"""`Mixes`: the mixes of teams of unlike sizes, which are searched together, or each by itself where they are few."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from pipeplan.core.splits import Mix
from pipeplan.costs.sharding.mixed import MOST
from pipeplan.costs.sharding.question import MixedQuestion
from pipeplan.search.space.mixed import MixedSpace
from pipeplan.search.space.space import Space


class HasSpaces(Protocol):
    """What has the spaces of a mix: `Spaces`."""

    @property
    def in_one_round(self) -> Iterator[Space]:
        """The spaces in which a device has one stage."""


Own = TypeVar("Own", bound=HasSpaces)


class Mixes(Generic[Own]):
    """The spaces of mixes, made when they are asked for.

    Parameters
    ----------
    make : callable
        Makes the spaces of a mix of a question; None if it has none.

    Attributes
    ----------
    together : tuple of MixedSpace
        Those that are searched together.
    """

    def __init__(self, make: Callable[[MixedQuestion, Mix], Own | None]) -> None:
        self._make = make
        self._known: dict[Mix, Own | None] = {}
        self.together: tuple[MixedSpace, ...] = ()

    def search_together(self, questions: Sequence[MixedQuestion]) -> None:
        """Search the mixes of some questions together."""
        self.together = tuple(MixedSpace(question, partial(self._levels_of, question)) for question in questions)

    def each(self, questions: Sequence[MixedQuestion]) -> Iterator[tuple[Mix, Own]]:
        """Yield the spaces of each mix, if they are few."""
        rows = [(question, question.every()) for question in questions]
        if sum(MOST + 1 if row is None else len(row) for _, row in rows) <= MOST:
            for question, row in rows:
                for mix in row or ():
                    if (spaces := self._of(question, mix)) is not None:
                        yield mix, spaces

    def find(self, mix: Mix) -> Own | None:
        """Return the spaces of a mix of those that are searched together; None if it is none of them."""
        for space in self.together:
            if set(mix.splits) <= set(space.question.splits):
                return self._of(space.question, mix)
        return None

    def _of(self, question: MixedQuestion, mix: Mix) -> Own | None:
        if mix not in self._known:
            self._known[mix] = self._make(question, mix)
        return self._known[mix]

    def _levels_of(self, question: MixedQuestion, mix: Mix) -> tuple[Space, ...]:
        spaces = self._of(question, mix)
        return () if spaces is None else tuple(spaces.in_one_round)
