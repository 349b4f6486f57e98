"""Names of weights within their layers, alike in equal layers, and in the unsplit model.

As in relative imports of Python, each leading dot leads one module up from the layer's first module::

    layer                 weight           in the unsplit model
    block0                widen.weight     block0.widen.weight
    transformer.h.3.attn  .ln_1.weight     transformer.h.3.ln_1.weight
    model.wte..wpe        .wpe.weight      model.wpe.weight
    norm#2                weight           norm.weight
"""

import re

_END = re.compile(r"\.\.|[:#]")


def weight_name(layer: str, full: str) -> str:
    """Return the name within the layer of a parameter of the unsplit model."""
    base, path = _base(layer), full.split(".")
    shared = next((i for i, (a, b) in enumerate(zip(base, path[:-1], strict=False)) if a != b), None)
    shared = min(len(base), len(path) - 1) if shared is None else shared
    return "." * (len(base) - shared) + ".".join(path[shared:])


def shard_name(layer: str, weight: str) -> str:
    """Return the name in the unsplit model of a weight (`Weight.name`) of a layer: the name that shards have."""
    base, rest = _base(layer), weight.lstrip(".")
    return ".".join((*base[: len(base) - (len(weight) - len(rest))], rest))


def _base(layer: str) -> list[str]:
    """Path of the first module of a layer."""
    return _END.split(layer, maxsplit=1)[0].split(".")
