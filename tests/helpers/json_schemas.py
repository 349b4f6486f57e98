"""A small validator of JSON Schemas, with the keywords that ours use."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES: Mapping[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def faults(value: Any, schema: Any, root: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each place where a value breaks a schema."""
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in schema and all(any(faults(value, each, root)) for each in schema["anyOf"]):
        yield f"{path}: none of the alternatives"
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        yield f"{path}: {value!r} is no {kind}"
        return
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        yield f"{path}: {value!r} is not among the values"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} does not match"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{path}: {value} is too small"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield f"{path}: {value} is too small"
    for item in value if "items" in schema else ():
        yield from faults(item, schema["items"], root, f"{path}[]")
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: missing"
    for name, item in value.items() if isinstance(value, dict) else ():
        if name in known:
            yield from faults(item, known[name], root, f"{path}.{name}")
        elif others is False:
            yield f"{path}.{name}: unknown"
        elif isinstance(others, dict):
            yield from faults(item, others, root, f"{path}.{name}")
