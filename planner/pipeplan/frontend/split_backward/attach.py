"""Switch of a stage's layers between split and joined backward."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import fx, nn

from pipeplan.frontend.split_backward.graphs import Replacement, replacements
from pipeplan.frontend.split_backward.layers import delayed_class
from pipeplan.frontend.split_backward.queue import JOINED, WeightQueue

QUEUE = "weight_queue"
"""Attribute of a module: the queue that it uses."""


def attach(queue: WeightQueue, modules: Iterable[nn.Module]) -> Callable[[], None]:
    """Make these modules, and all inside them, put weight gradients into the queue while it is open.

    Linear, convolution and embedding modules change their class, captured graphs some of their operations. All else
    stays unchanged, and so do layers that take gradients in their forward, whose weight gradients are no part of it. A
    module that has a queue already uses the new one.

    Returns
    -------
    callable
        Function that undoes the change.
    """
    undo: list[Callable[[], None]] = []
    parts = dict.fromkeys(part for module in modules for part in module.modules())
    joined = {inside for part in parts if getattr(part, JOINED, False) for inside in part.modules()}
    for part in parts:
        if part in joined:
            continue
        if hasattr(part, QUEUE):
            undo.append(partial(setattr, part, QUEUE, getattr(part, QUEUE)))
            setattr(part, QUEUE, queue)
        elif isinstance(part, fx.GraphModule):
            undo += _rewrite(part, queue)
        elif (waiting := delayed_class(type(part))) is not None:  # type: ignore[arg-type]
            undo.append(partial(_restore_class, part, type(part)))
            setattr(part, QUEUE, queue)
            part.__class__ = waiting

    def restore() -> None:
        for step in undo:
            step()

    return restore


@contextmanager
def attached(queue: WeightQueue, modules: Iterable[nn.Module]) -> Iterator[None]:
    """Context in which the modules use the queue, as by `attach`."""
    restore = attach(queue, modules)
    try:
        yield
    finally:
        restore()


def _restore_class(part: nn.Module, kind: type[nn.Module]) -> None:
    part.__class__ = kind
    delattr(part, QUEUE)


def _rewrite(part: fx.GraphModule, queue: WeightQueue) -> Iterator[Callable[[], None]]:
    changes = replacements(part)
    if not changes:
        return
    setattr(part, QUEUE, queue)
    with part.graph.inserting_before(next(iter(part.graph.nodes))):
        source = part.graph.create_node("get_attr", QUEUE)
    before = [Replacement(change.node, change.node.target, change.node.args) for change in changes]
    for node, target, arguments in changes:
        node.target, node.args, node.kwargs = target, arguments, {**node.kwargs, "queue": source}
    part.recompile()

    def restore() -> None:
        for node, target, arguments in before:
            node.target, node.args = target, arguments
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "queue"}
        part.graph.erase_node(source)
        delattr(part, QUEUE)
        part.recompile()

    yield restore
