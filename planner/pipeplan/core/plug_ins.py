"""`Registry`: things of one kind by name, pipeplan's own, those of other packages, and those that a caller hands over.

::

    own                                "pipedream", "gpipe", …
    entry points of one group          [project.entry-points."pipeplan.partitioners"]  mine = "my_package:cut"
    handed over for one call           compare(…, plug_ins=[cut])

Other packages are looked at when a name is first asked for. What cannot be loaded stays in the list, and says so where
it is used: nothing else is disturbed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from types import MappingProxyType
from typing import Any, Generic, NoReturn, TypeVar

from pipeplan.core.errors import InputError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """The things of a kind, in this order: pipeplan's own, those of entry points, those handed over.

    Parameters
    ----------
    group : str
        Of entry points, like ``'pipeplan.partitioners'``.
    own : iterable
        Pipeplan's own, each with a ``name``.
    adapt : callable
        ``adapt(found, name, source)`` returns what was plugged in as one of the kind, or raises `InputError`.
    broken : callable
        ``broken(name, why)`` returns one of the kind that gives the reason ``why`` wherever it is used.
    """

    def __init__(
        self,
        group: str,
        own: Iterable[T],
        adapt: Callable[[Any, str, str], T],
        broken: Callable[[str, str], T],
    ) -> None:
        self.group, self._adapt, self._broken = group, adapt, broken
        self.own: Mapping[str, T] = MappingProxyType({each.name: each for each in own})  # type: ignore[attr-defined]
        self._handed: dict[str, T] = {}

    @cached_property
    def announced(self) -> Mapping[str, T]:
        """Those of entry points."""
        found: dict[str, T] = {}
        for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
            taken = point.name in self.own or point.name in found
            name = f"{point.name}@{_package(point)}" if taken else point.name
            try:
                if taken:
                    raise InputError(f"the name {point.name!r} is taken; give it another one")
                found[name] = self._adapt(point.load(), name, _package(point))
            except Exception as error:
                found[name] = self._broken(name, f"{self.group} {name!r} of {_package(point)} {_failed(error)}")
        return MappingProxyType(found)

    @contextmanager
    def handing(self, found: Any, name: str) -> Iterator[T]:
        """Context in which something is in the list too, like what another package announces.

        Raises
        ------
        InputError
            If the name is taken, or it is not of the kind.
        """
        if name in self:
            raise InputError(f"{name!r} is the name of another one in {self.group}; give yours a name of its own")
        self._handed[name] = self._adapt(found, name, "this call")
        try:
            yield self._handed[name]
        finally:
            del self._handed[name]

    def __getitem__(self, name: str) -> T:
        if name in self.own:  # asked for most, and in inner loops
            return self.own[name]
        return self._handed[name] if name in self._handed else self.announced[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*self.own, *self.announced, *self._handed)

    def __len__(self) -> int:
        return len(self.own) + len(self.announced) + len(self._handed)


def entry_points(group: str) -> EntryPoints:
    """Return the entry points of a group; all packages are looked through once."""
    found: EntryPoints = _every_entry_point().select(group=group)
    return found


@cache
def _every_entry_point() -> Any:
    return metadata.entry_points()


def _package(point: EntryPoint) -> str:
    return point.value.partition(".")[0].partition(":")[0] if point.dist is None else str(point.dist.name)


def _failed(error: Exception) -> str:
    what = "cannot be used" if isinstance(error, InputError) else f"cannot be loaded: {type(error).__name__}"
    return f"{what}: {error}"


def refuse(*_: object, why: str) -> NoReturn:
    """Refuse to be used, for this reason: what stands for something that cannot be loaded."""
    raise InputError(why)


def named(found: Any) -> str:
    """Return the name of what a caller hands over: its ``name``, or that of the function with hyphens."""
    name = getattr(found, "name", None) or getattr(found, "__name__", "")
    if not isinstance(name, str) or not name or name == "<lambda>":
        raise InputError("a lambda has no name that could stand in a table; plug in a function, or an object with one")
    return name.replace("_", "-") if callable(found) else name


def summary_of(found: Any) -> str:
    """Return the first line of a function's docstring."""
    return (getattr(found, "__doc__", None) or "no description").strip().splitlines()[0].rstrip(".")
