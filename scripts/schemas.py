"""Write the schemas in ``datasets/schemas``; the site has them as tables of fields, in the page on files."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeplan.cli.schema import FILES, schema_of
from pipeplan.io.atomic import write_whole

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("PlainLayer", "JobFile", "PipelineEntry", "LayerStrategiesEntry", "ContextEntry", "ShardEntry")
"""Entries without a table: repetitions, and what only programs read and write."""


def schema_text(file: str) -> str:
    """Return the text of the schema of a kind of file."""
    return json.dumps(schema_of(file), indent=2) + "\n"


def field_tables(schema: Any) -> str:
    """Return tables in Markdown of the fields of a file and of its nested entries, in order of mention."""
    waiting: list[tuple[str, Any]] = [("", schema)]
    done, parts = set(LEFT_OUT), []
    while waiting:
        name, entry = waiting.pop(0)
        rows = ["| field | value | meaning |", "|---|---|---|"]
        for field, value in entry.get("properties", {}).items():
            needed = "" if field in entry.get("required", ()) else _default(value)
            kind = _words(value, schema["$defs"])
            rows.append(f"| `{field}` | {kind}{needed} | {_escaped(value.get('description', ''))} |")
        if len(rows) > 2:
            about = f"**{name}**: {_first_sentence(entry)}\n\n" if name else ""
            parts.append(about + "\n".join(rows))
        for ref in re.findall(r"#/\$defs/(\w+)", str(entry.get("properties", entry))):
            if ref not in done:
                done.add(ref)
                waiting.append((ref, schema["$defs"][ref]))
    return "\n\n".join(parts)


def _words(value: Any, entries: Mapping[str, Any]) -> str:
    """The type of a field."""
    if "$ref" in value:
        name = str(value["$ref"].rpartition("/")[2])
        return _words(entries[name], entries) if "enum" in entries[name] else name
    if "enum" in value:
        return ", ".join("null" if each is None else str(each).lower() for each in value["enum"])
    if "const" in value:
        return str(value["const"])
    if "examples" in value:
        return f"like {value['examples'][0]}"
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_words(each, entries) for each in value["anyOf"] if each != {"type": "null"}))
    if value.get("type") == "array":
        return f"list of {_words(value['items'], entries)}" if value.get("items") else "list"
    if isinstance(value.get("additionalProperties"), dict):
        return f"name: {_words(value['additionalProperties'], entries)}"
    return {"integer": "whole number", "number": "number", "boolean": "true, false", "string": "text"}.get(
        value.get("type", ""), "anything"
    )


def _default(value: Any) -> str:
    default = value.get("default")
    if default in (None, [], "", {}) or isinstance(default, dict):
        return "; optional"
    return f" ({str(default).lower()})"


def _first_sentence(entry: Any) -> str:
    text = re.split(r"; see |\n\n", entry.get("description", ""))[0].replace("\n", " ").rstrip(".")
    return _escaped(text) + "."


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


def main() -> None:
    """Rewrite all schemas."""
    for file in FILES:
        write_whole(ROOT / "datasets" / "schemas" / f"{file}.json", schema_text(file))


if __name__ == "__main__":
    main()
