"""Strict schemas for all files, quantities with units, and one error that lists all faults of a file.

The functions ``written_…`` are the inverse of `core.units`: they write integers with a readable unit, and the parsers
read them back exactly.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    RootModel,
    ValidationError,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from pipeplan.core.errors import InputError
from pipeplan.core.figures import LARGEST, shown
from pipeplan.core.units import parse_bandwidth, parse_bytes, parse_rate, parse_time
from pipeplan.core.wording import hint


class Strict(BaseModel):
    """Base schema: unknown fields are errors, and no value is converted silently.

    A string below a field describes it in the file's JSON Schema. Fields without one have the description that the
    docstring of ``describes`` gives for the attribute of that name. Both are read when a JSON Schema is made: to look
    for strings below fields takes longer than to read most files.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)
    describes: ClassVar[type | None] = None

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler.resolve_ref_schema(handler(schema))
        texts = dict(_attributes(cls.describes))
        for kind in reversed(cls.__mro__):
            texts |= dict(_below_fields(kind)) if issubclass(kind, Strict) else {}
        for name, text in texts.items():
            if name in found["properties"]:
                found["properties"][name].setdefault("description", text)
        return found


def json_schema(schema: type[BaseModel], title: str) -> dict[str, Any]:
    """Return the JSON Schema of a file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return head | dict(_tidy(schema.model_json_schema()))


_LIMITS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
"""Names of JSON Schema for limits that pydantic writes as they are, behind a `BeforeValidator`."""


def _tidy(value: Any) -> Any:
    """Drop pydantic's titles, which repeat names of fields, limits that guard 64 bits only, and examples in Python."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if isinstance(value, str):
        return value.partition("\n\nExamples\n---")[0]
    if not isinstance(value, dict):
        return value
    left_out = [key for key, item in value.items() if (key == "title" and isinstance(item, str)) or item == LARGEST]
    return {_LIMITS.get(key, key): _tidy(item) for key, item in value.items() if key not in left_out}


def _attributes(kind: type | None) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a class and what its numpydoc says about each."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes\n----------\n") if kind else ("", "", "")
    for entry in re.split(r"\n(?=\S)", section.partition("\n\n")[0]):
        names, _, text = entry.partition("\n")
        for name in names.partition(" : ")[0].split(", "):
            if text:
                yield name, " ".join(text.split())


def _below_fields(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that have a string below them, each with the string."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    for field, below in pairwise(getattr(definition, "body", ())):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                yield name, inspect.cleandoc(text)


def _quantity(parse: Callable[[Any], int]) -> BeforeValidator:
    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value  # already in the internal unit; not converted through a float
        try:
            return parse(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(read)


def _written(*examples: str) -> WithJsonSchema:
    """A number, or a number with a unit."""
    number = {"type": "number", "minimum": 0}
    text = {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*[^\s]*\s*$"}
    return WithJsonSchema({"anyOf": [number, text], "examples": list(examples)})


Bytes = Annotated[int, _quantity(parse_bytes), Field(ge=0, le=LARGEST), _written("16GiB", "100MB")]
Nanoseconds = Annotated[int, _quantity(parse_time), Field(ge=0, le=LARGEST), _written("5us", "1.5ms")]
Bandwidth = Annotated[int, _quantity(parse_bandwidth), Field(gt=0, le=LARGEST), _written("300GB/s", "10Gbit/s")]
Rate = Annotated[int, _quantity(parse_rate), Field(gt=0, le=LARGEST), _written("125TFLOP/s")]
Flops = Annotated[int, _quantity(parse_rate), Field(ge=0, le=LARGEST), _written("7.5GFLOP")]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Whole = Annotated[int, Field(ge=0, le=LARGEST)]


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]
"""A list in the file, a tuple in Python."""

Schema = TypeVar("Schema", bound=BaseModel)


def check(schema: type[Schema], data: object, where: str) -> Schema:
    """Validate ``data`` against ``schema``.

    Raises
    ------
    InputError
        Naming every wrong, missing and unknown field with its full path, and the probably intended one.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: expected fields and values at the top, found {_kind(data)}")
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        complaints = [_complaint(schema, item) for item in error.errors(include_url=False)]
    raise InputError(listing(where, complaints))


def listing(where: str, complaints: Iterable[str]) -> str:
    """Return one text that lists all faults of a file."""
    lines = list(dict.fromkeys(complaints))
    count = "one thing is" if len(lines) == 1 else f"{len(lines)} things are"
    return "\n  ".join([f"{where}: {count} wrong", *(line.replace("\n", "\n  ") for line in lines)])


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
    """Replace pydantic's names of Python types by the words for values in a file."""
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
    """Return the readable path of a complaint, and the schema that contains its field."""
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
            # the type arguments of a list or tuple begin with its item type, those of a mapping end with its value type
            inner = [item for item in get_args(here) if item is not Ellipsis]
            here = inner[-1] if inner else Any
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path, parent


def _bare(annotation: Any) -> Any:
    """Strip ``| None`` and `Annotated` from an annotation."""
    while True:
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            annotation = inner[0]
        elif origin in (Union, UnionType):
            annotation = next(item for item in inner if item is not type(None))
        else:
            return annotation


_EXACT = 2**50
"""Larger numbers are written without a unit: the parsers round a float and its product with the unit."""


def written_bytes(value: int) -> int | str:
    """Write bytes: ``'16GiB'``, ``'1568MiB'``; a size that is not a multiple of a KiB stays a plain integer."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value and value % factor == 0 and value // factor < _EXACT:
            return f"{value // factor}{unit}"
    return value


def written_time(value: int) -> int | str:
    """Write nanoseconds: ``'5us'``, ``'22.307ms'``, ``'850ns'``."""
    for digits, unit in ((9, "s"), (6, "ms"), (3, "us"), (0, "ns")):
        if 10**digits <= value < _EXACT:
            return f"{_decimal(value, digits)}{unit}"
    return value


def written_bandwidth(value: int) -> int | str:
    """Write bytes per second: ``'300GB/s'``, ``'1.25GB/s'``."""
    return _rate(value, "B/s")


def written_rate(value: int) -> int | str:
    """Write operations per second: ``'125TFLOP/s'``."""
    return _rate(value, "FLOP/s")


def written_flops(value: int) -> int | str:
    """Write operations: ``'7.5GFLOP'``."""
    return _rate(value, "FLOP")


def _rate(value: int, unit: str) -> int | str:
    for digits, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if 10**digits <= value < _EXACT:
            return f"{_decimal(value, digits)}{prefix}{unit}"
    return value


def _decimal(value: int, digits: int) -> str:
    """Return ``value / 10**digits`` as exact decimal digits without trailing zeros."""
    whole, rest = divmod(value, 10**digits)
    fraction = f"{rest:0{digits}d}".rstrip("0") if digits else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
