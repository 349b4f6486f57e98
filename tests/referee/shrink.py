"""A question in dispute made as small as it may be while the dispute stays the same."""

import copy
import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from .documents import Document

Path = tuple[str | int, ...]
"""Keys and places on the way to a number."""


def shrink(document: Document, faults: Callable[[Document], list[str]]) -> Document:
    """Leave out and lower whatever the sort of the first fault does not need."""
    sort = _sort(faults(document))
    smaller = True
    while smaller:
        smaller = False
        for other in _smaller(document):
            try:
                if other != document and _sort(faults(other)) == sort:
                    document, smaller = other, True
                    break
            except (KeyError, IndexError, ValueError, AssertionError):
                continue  # it is no question any more
    return document


def _sort(faults: list[str]) -> str:
    return re.sub(r"\d+", "#", faults[0])[:24] if faults else ""


def _smaller(document: Document) -> Iterator[Document]:
    for name in [name for name in document["job"] if name != "batch"]:
        yield _changed(document, lambda d, name=name: d["job"].pop(name))  # type: ignore[misc]
    for name in [name for name, value in document["job"].items() if isinstance(value, list) and len(value) > 1]:
        for i in range(len(document["job"][name])):
            yield _changed(document, lambda d, name=name, i=i: d["job"][name].pop(i))  # type: ignore[misc]
    for i in range(len(document["model"]["layers"])):
        yield _changed(document, lambda d, i=i: _drop_layer(d, i))  # type: ignore[misc]
    several = sum(len(node["devices"]) for node in document["cluster"]["nodes"]) > 1
    for n, node in enumerate(document["cluster"]["nodes"]):
        for i in range(len(node["devices"]) if several else 0):
            yield _changed(document, lambda d, n=n, i=i: _drop_device(d, n, i))  # type: ignore[misc]
    for i in range(len(document["model"]["profiles"])):
        yield _changed(document, lambda d, i=i: d["model"]["profiles"].pop(i))  # type: ignore[misc]
    yield _changed(document, lambda d: d["model"].pop("ties", None))
    yield _changed(document, lambda d: d["solve"].update(backend="cpsat", gap=0.0))
    for batch in range(1, document["job"]["batch"]):
        yield _changed(document, lambda d, batch=batch: d["job"].update(batch=batch))  # type: ignore[misc]
    for path in list(_numbers(document)):
        for number in (0, 1, _at(document, path[:-1])[path[-1]] // 2):
            if number < _at(document, path[:-1])[path[-1]]:
                yield _changed(document, lambda d, p=path, x=number: _at(d, p[:-1]).__setitem__(p[-1], x))  # type: ignore[misc]


def _changed(document: Document, change: Callable[[Document], object]) -> Document:
    other = copy.deepcopy(document)
    change(other)
    return other


def _at(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


def _numbers(document: Document) -> Iterator[Path]:
    for p, profile in enumerate(document["model"]["profiles"]):
        for name, row in profile["costs"].items():
            yield from (("model", "profiles", p, "costs", name, figure) for figure, value in row.items() if value)
    for p, own in enumerate(document["model"].get("slice_profiles", ())):
        for end, name in product(("first", "last"), own["first"]):
            row = own[end][name]
            yield from (("model", "slice_profiles", p, end, name, figure) for figure, value in row.items() if value)
    for i, layer in enumerate(document["model"]["layers"]):
        yield from (("model", "layers", i, name) for name in ("parameters", "frozen") if layer.get(name))
    for kind, entry in document["cluster"]["devices"].items():
        yield from (("cluster", "devices", kind, name) for name in ("runtime", "memory") if entry.get(name))
    for n, node in enumerate(document["cluster"]["nodes"]):
        if node["link"].get("latency"):
            yield ("cluster", "nodes", n, "link", "latency")
    if (document["cluster"].get("network") or {}).get("latency"):
        yield ("cluster", "network", "latency")


def _drop_layer(document: Document, i: int) -> None:
    layers = document["model"]["layers"]
    name, inputs = layers[i]["name"], layers[i]["inputs"]
    layers.pop(i)
    for layer in layers:
        if name in layer["inputs"]:
            kept = [source for source in layer["inputs"] if source != name]
            layer["inputs"] = list(dict.fromkeys([*kept, *inputs]))
    for profile in document["model"]["profiles"]:
        profile["costs"].pop(name)
    for own in document["model"].get("slice_profiles", ()):
        own["first"].pop(name), own["last"].pop(name)


def _drop_device(document: Document, n: int, i: int) -> None:
    nodes = document["cluster"]["nodes"]
    nodes[n]["devices"].pop(i)
    if not nodes[n]["devices"]:
        nodes.pop(n)
    if len(nodes) == 1:
        document["cluster"]["network"] = None
