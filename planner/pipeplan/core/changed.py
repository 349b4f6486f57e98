"""`changed`: a frozen part of a question with other values, made and checked once."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

Part = TypeVar("Part")


def changed(part: Part, **values: Any) -> Part:
    """Return a part with other values, as `dataclasses.replace`, which checks it; the same one if asked again."""
    made: Part = _made(part, **values)
    return made


@lru_cache(maxsize=2**12)
def _made(part: Any, **values: Any) -> Any:
    return replace(part, **values)
