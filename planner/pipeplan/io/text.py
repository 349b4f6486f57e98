"""Parse and write YAML and JSON as plain data, with errors that name the file and the place."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.parts import printable_path


def read_text(path: Path) -> str:
    """Return the content of a text file.

    Raises
    ------
    InputError
        If it does not exist, may not be read, or is not text.
    """
    printable_path(path)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file (byte {error.start} is not UTF-8)") from error


DEEPEST = 100
"""Largest nesting depth of lists and mappings; a model needs six."""
MOST_VALUES = 2 * 10**7
"""Largest number of values of one file, with references (``*name``) counted in full."""


def parse_data(text: str, where: str) -> Any:
    """Parse a YAML or JSON text; a text that begins with a brace or bracket is tried as JSON first.

    Raises
    ------
    InputError
        If it is neither, nests deeper than `DEEPEST`, holds a number that YAML 1.1 reads in base 60 or 8, or a control
        character other than tabs and line breaks.
    """
    data = _parsed(text, where)
    if "\\" in text:  # only escapes stand for control characters: YAML and JSON refuse them as they are
        for value in _texts(data):
            if found := _CONTROL.search(value):
                raise InputError(
                    f"{where}: {shown(value)} holds the control character {found[0]!a}, which could change what a "
                    "terminal shows; take it out"
                )
    return data


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def _texts(data: Any) -> Iterator[str]:
    """Yield every text of plain data, keys included."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value


def _parsed(text: str, where: str) -> Any:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _from_json(text, where)
        except json.JSONDecodeError:
            pass  # a YAML flow mapping begins with a brace too
    try:
        _measure(text)
        return yaml.load(text, Loader=_Loader)  # a safe loader that also refuses repeated keys
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{where}{place}: {error.problem or 'not valid YAML'}") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InputError(f"{where} is not valid YAML: {error}") from error  # PyYAML's own errors at !!int x, 2026-99-99


def _from_json(text: str, where: str) -> Any:
    def refuse(word: str) -> None:
        raise InputError(f"{where}: {word} is not a number of JSON; write a finite one")

    try:
        data = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, where), parse_constant=refuse)
        if "\\u" in text:
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError as error:
        raise InputError(f"{where} nests lists or mappings deeper than {DEEPEST} levels") from error
    except UnicodeEncodeError as error:
        raise InputError(f"{where} holds half a character ({error.object[error.start]!a})") from error
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # Python refuses to parse thousands of digits
        raise InputError(f"{where} holds a number that is too long: {error}") from error
    return data


def _measure(text: str) -> None:
    """Refuse nesting and sizes that would crash the recursive parser of the C library or exhaust memory."""
    depth, total = 0, 0
    named: dict[str, int | None] = {}
    open_: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise _marked(f"lists or mappings nest deeper than {DEEPEST} levels", event)
            open_.append((event.anchor, total))
            if event.anchor:
                named[event.anchor] = None
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1
            anchor, before = open_.pop()
            if anchor:
                named[anchor] = total - before
        elif isinstance(event, yaml.events.AliasEvent):
            size = named.get(event.anchor or "", 1)
            if size is None:
                raise _marked(f"*{event.anchor} refers to what it is part of", event)
            total += size
        total += 1
        if total > MOST_VALUES:
            raise _marked(
                f"there are more than {MOST_VALUES} values, references (*) counted as what they stand for", event
            )


def _marked(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _once(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{where}: {twice!r} stands twice in one mapping")
    return found


class _Loader(yaml.SafeLoader if not yaml.__with_libyaml__ else yaml.CSafeLoader):  # type: ignore[misc]
    """Safe loader that refuses repeated keys, of which PyYAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping; refuse repeated keys."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise yaml.MarkedYAMLError(problem="a key must be a name", problem_mark=key_node.start_mark)
            if key in seen and key != "<<":
                raise yaml.MarkedYAMLError(
                    problem=f"{key!r} stands twice in one mapping", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return dict(super().construct_mapping(node, deep))


_OCTAL = re.compile(r"[-+]?0[0-7_]+")


def _number(loader: Any, node: yaml.ScalarNode) -> Any:
    """Parse a number; refuse notations to base 60 or 8, which YAML 1.1 reads differently from common usage."""
    text = str(node.value)
    integer = node.tag.endswith(":int")
    if ":" in text or (integer and _OCTAL.fullmatch(text)):
        read = loader.construct_yaml_int(node) if integer else loader.construct_yaml_float(node)
        base = "60" if ":" in text else "8"
        raise yaml.MarkedYAMLError(
            problem=f"{text} would be read as {read} (YAML 1.1 takes it for a number to base {base}); write {read} if "
            f"that is meant, another number without leading zeros or colons, or '{text}' in quotes if it is text",
            problem_mark=node.start_mark,
        )
    return loader.construct_yaml_int(node) if integer else loader.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


class Row(dict[str, Any]):
    """A mapping that YAML writes on one line."""


class Line(list[Any]):
    """A list that YAML writes on one line."""


class _Dumper(yaml.SafeDumper if not yaml.__with_libyaml__ else yaml.CSafeDumper):  # type: ignore[misc]
    """Dumper that keeps the order of fields, writes rows on one line, and writes no references."""

    def ignore_aliases(self, _: Any) -> bool:
        """Return True: no references like ``&id001``, for readable files."""
        return True


_Dumper.add_representer(
    Row, lambda dumper, row: dumper.represent_mapping("tag:yaml.org,2002:map", row.items(), flow_style=True)
)
_Dumper.add_representer(
    Line, lambda dumper, line: dumper.represent_sequence("tag:yaml.org,2002:seq", line, flow_style=True)
)


def yaml_text(data: Mapping[str, Any]) -> str:
    """Return YAML in the given order of fields."""
    text = yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10**6
    )
    return str(text)


def json_text(data: Mapping[str, Any]) -> str:
    """Return JSON in the given order of fields, indented by two."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def lean(**fields: Any) -> dict[str, Any]:
    """Return the fields without None and without empty text, lists and mappings."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", (), [], {})}
