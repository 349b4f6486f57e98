"""YAML and JSON as plain data, in both directions, with errors that name the file and the place."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeplan.errors import InputError


def read_text(path: Path) -> str:
    """The whole file.

    Raises
    ------
    InputError
        If it is not there, may not be read, or is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file (byte {error.start} is not UTF-8)") from error


def parse_data(text: str, where: str) -> Any:
    """Data of a YAML or JSON text; JSON is what begins with a brace or a bracket and is valid as such."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, where))
        except json.JSONDecodeError:
            pass  # a YAML flow mapping begins with a brace too
    try:
        return yaml.load(text, Loader=_Loader)  # a safe loader that also refuses repeated keys
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{where}{place}: {error.problem or 'not valid YAML'}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not valid YAML: {error}") from error


def _once(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{where}: {twice!r} stands twice in one mapping")
    return found


class _Loader(yaml.SafeLoader if not yaml.__with_libyaml__ else yaml.CSafeLoader):  # type: ignore[misc]
    """PyYAML keeps the last of two equal keys in silence; this one refuses."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys all differ."""
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


class Row(dict[str, Any]):
    """A mapping that YAML writes on one line."""


class Line(list[Any]):
    """A list that YAML writes on one line."""


class _Dumper(yaml.SafeDumper if not yaml.__with_libyaml__ else yaml.CSafeDumper):  # type: ignore[misc]
    """Keeps the order of fields, writes rows on one line, and repeats rather than refers."""

    def ignore_aliases(self, _: Any) -> bool:
        """No ``&id001``: files are for people."""
        return True


_Dumper.add_representer(
    Row, lambda dumper, row: dumper.represent_mapping("tag:yaml.org,2002:map", row.items(), flow_style=True)
)
_Dumper.add_representer(
    Line, lambda dumper, line: dumper.represent_sequence("tag:yaml.org,2002:seq", line, flow_style=True)
)


def yaml_text(data: Mapping[str, Any]) -> str:
    """YAML in the given order of fields."""
    text = yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10**6
    )
    return str(text)


def json_text(data: Mapping[str, Any]) -> str:
    """JSON in the given order of fields, indented by two."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def lean(**fields: Any) -> dict[str, Any]:
    """The fields that say something: without None, without empty text, lists and mappings."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", (), [], {})}
