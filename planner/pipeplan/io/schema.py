"""Strict schemas for all files, quantities with units, and one error for everything that is wrong.

``written_…`` are the inverse of `core.units`: integers with a unit that makes them easy to read, which the parsers
read back exactly.
"""

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, ValidationError

from pipeplan.core.errors import InputError
from pipeplan.core.figures import LARGEST, shown
from pipeplan.core.units import parse_bandwidth, parse_bytes, parse_rate, parse_time
from pipeplan.core.wording import hint


class Strict(BaseModel):
    """A schema that knows all its fields: an unknown one is an error, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _quantity(parse: Callable[[Any], int]) -> BeforeValidator:
    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value  # already in the unit used inside; no detour through a float
        try:
            return parse(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(read)


Bytes = Annotated[int, _quantity(parse_bytes), Field(ge=0, le=LARGEST)]
Nanoseconds = Annotated[int, _quantity(parse_time), Field(ge=0, le=LARGEST)]
Bandwidth = Annotated[int, _quantity(parse_bandwidth), Field(gt=0, le=LARGEST)]
Rate = Annotated[int, _quantity(parse_rate), Field(gt=0, le=LARGEST)]
Flops = Annotated[int, _quantity(parse_rate), Field(ge=0, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Whole = Annotated[int, Field(ge=0, le=LARGEST)]


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]
"""A list in the file, a tuple inside."""

Schema = TypeVar("Schema", bound=BaseModel)


def check(schema: type[Schema], data: object, where: str) -> Schema:
    """``data`` in the form of ``schema``.

    Raises
    ------
    InputError
        Naming every wrong, missing and unknown field with its full path, and what was probably meant.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: expected fields and values at the top, found {_kind(data)}")
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        complaints = [_complaint(schema, item) for item in error.errors(include_url=False)]
    raise InputError(listing(where, complaints))


def listing(where: str, complaints: Iterable[str]) -> str:
    """One text for everything that is wrong with one file."""
    lines = list(dict.fromkeys(complaints))
    count = "one thing is" if len(lines) == 1 else f"{len(lines)} things are"
    return "\n  ".join([f"{where}: {count} wrong", *lines])


def _complaint(schema: type[BaseModel], item: Any) -> str:
    path, parent = _walk(schema, item["loc"])
    kind, value = item["type"], item["input"]
    if kind == "extra_forbidden":
        known = tuple(parent.model_fields) if parent else ()
        suggestion = hint(str(item["loc"][-1]), known) or f"; known are {', '.join(known)}"
        return f"{path}: unknown field{suggestion}"
    if kind == "missing":
        return f"{path}: missing"
    if kind == "value_error":
        return f"{path}: {str(item['msg']).removeprefix('Value error, ')}"
    return f"{path}: {_plain(str(item['msg']))}, found {_kind(value)}"


def _plain(message: str) -> str:
    """pydantic's words for Python's types, in words for a file's."""
    for word, plain in _WORDS.items():
        message = message.replace(word, plain)
    return message


_WORDS = {
    "Input should be": "should be",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid dictionary or instance of": "fields of",
    "a valid dictionary": "a mapping",
    "a valid integer": "a whole number",
    "a valid boolean": "true or false",
    "a valid string": "text",
}


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else shown(value)


def _walk(schema: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, type[BaseModel] | None]:
    """The path of a complaint as a person writes it, and the schema around the field it is about."""
    path, parent = "", None
    here: Any = schema
    for part in loc:
        here = _bare(here)
        if isinstance(here, type) and issubclass(here, RootModel):
            here = _bare(here.model_fields["root"].annotation)
        parent = here if isinstance(here, type) and issubclass(here, BaseModel) else None
        if parent is not None:
            field = parent.model_fields.get(str(part))
            here = field.annotation if field else Any
        else:
            # a list or tuple says the type of its items first, a mapping the type of its values last
            inner = [item for item in get_args(here) if item is not Ellipsis]
            here = inner[-1] if inner else Any
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path, parent


def _bare(annotation: Any) -> Any:
    """An annotation without ``| None`` and without what `Annotated` adds."""
    while True:
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            annotation = inner[0]
        elif origin in (Union, UnionType):
            annotation = next(item for item in inner if item is not type(None))
        else:
            return annotation


_EXACT = 2**50
"""The parsers round a float, and its product with the unit: larger numbers, which that may change, have no unit."""


def written_bytes(value: int) -> int | str:
    """``'16GiB'``, ``'1568MiB'``; a size that is no multiple of a KiB stays a plain number of bytes."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value and value % factor == 0 and value // factor < _EXACT:
            return f"{value // factor}{unit}"
    return value


def written_time(value: int) -> int | str:
    """``'5us'``, ``'22.307ms'``, ``'850ns'``."""
    for digits, unit in ((9, "s"), (6, "ms"), (3, "us"), (0, "ns")):
        if 10**digits <= value < _EXACT:
            return f"{_decimal(value, digits)}{unit}"
    return value


def written_bandwidth(value: int) -> int | str:
    """``'300GB/s'``, ``'1.25GB/s'``."""
    return _rate(value, "B/s")


def written_rate(value: int) -> int | str:
    """``'125TFLOP/s'``."""
    return _rate(value, "FLOP/s")


def written_flops(value: int) -> int | str:
    """``'7.5GFLOP'``."""
    return _rate(value, "FLOP")


def _rate(value: int, unit: str) -> int | str:
    for digits, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if 10**digits <= value < _EXACT:
            return f"{_decimal(value, digits)}{prefix}{unit}"
    return value


def _decimal(value: int, digits: int) -> str:
    """``value / 10**digits`` as exact decimal digits without trailing zeros."""
    whole, rest = divmod(value, 10**digits)
    fraction = f"{rest:0{digits}d}".rstrip("0") if digits else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
