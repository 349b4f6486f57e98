"""Operators of a layer as documents have them: what passes in and out, along which axes, and in how many samples."""

from collections.abc import Sequence

from .documents import Document

WHOLE, PART = -1, -2
"""Placements of a tensor along one axis of a mesh; others are the axis of the tensor along which it is split."""
PASSES = ("forward", "input_gradient", "weight_gradient")
INPUT, TOKEN, SAMPLE = "input", "token", "sample"


def inputs(graph: Document) -> list[str]:
    """The inputs of a graph of operators."""
    return list(graph["inputs"]) if "inputs" in graph else [INPUT]


def outputs(graph: Document) -> list[str]:
    """Its outputs."""
    return list(graph.get("outputs") or [graph["operators"][-1]["name"]])


def stream(graph: Document, names: list[str]) -> str:
    """Which of its inputs or outputs may be split along tokens: a single one, or the one that has a gradient."""
    if len(names) > 1:
        names = [name for name in names if name not in graph.get("without_gradient", ())]
    return names[0] if len(names) == 1 else ""


def token_axis(operators: Sequence[Document], name: str) -> int:
    """The axis of a tensor's tokens, if all say the same."""
    rows = [each["reads"][name] for each in operators if name in each["reads"]]
    rows += [each["makes"] for each in operators if each["name"] == name]
    axes = {list(row).index(TOKEN) if TOKEN in row else WHOLE for row in rows}
    return axes.pop() if len(axes) == 1 else WHOLE


def waits(operator: Document) -> bool:
    """Whether an operator runs on parts of the tokens only if the plan says so."""
    return bool(operator.get("product") or operator.get("attention"))


def in_samples(entry: Document, size: int, plain: bool) -> Document:
    """Operators of a micro-batch, which may be split along samples where each of them is computed by itself.

    ``plain``: no tensor has samples as an axis, so that all that depend on an input get one.
    """
    depend = set(inputs(entry))
    operators = []
    for each in entry["operators"]:
        own = dict(each)
        if depend & set(each["reads"]):
            depend.add(each["name"])
            if plain:
                own["reads"] = {name: [SAMPLE] * (name in depend) + [*row] for name, row in each["reads"].items()}
                own["makes"] = [SAMPLE, *each["makes"]] if each["makes"] else []
        along = SAMPLE in own["makes"] and any(SAMPLE in row for row in own["reads"].values())
        if along and each["name"] not in (entry.get("loss") or {"operators": ()})["operators"]:
            own["loops"] = each.get("loops", {}) | {SAMPLE: size}
        operators.append(own)
    return entry | {"operators": operators}


def has_samples(entry: Document) -> bool:
    """Whether a tensor has samples as an axis."""
    return any(SAMPLE in row for each in entry["operators"] for row in (each["makes"], *each["reads"].values()))
