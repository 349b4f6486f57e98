"""Export of a module as one plain graph by torch.export: batch tensors in, tensors out, parameters by name."""

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.frontend.batch import Batch, mapped, tensors
from pipeplan.frontend.capture.graph.gradients import check_module_hooks, nothing_on_gradients, place_in
from pipeplan.frontend.capture.private import FakeTensor, FakeTensorMode, fake, on_fake, pytree
from pipeplan.frontend.parameters import named_tensors

READS_KEPT = (
    "it reads a tensor that is neither a parameter nor a buffer, as from a cache of a class or a function; make it a "
    "buffer, or compute it in each forward"
)
_ADVICE = (
    (
        ("data-dependent", "DataDependent", "_local_scalar_dense", "nonzero", "unbacked"),
        "what it computes depends on values in the batch (an if, a loop or a size taken from a tensor); write it with "
        "torch.where or masks, or give stage modules of your own with Stages",
    ),
    (
        ("pytree", "Unsupported output type", "register_dataclass"),
        "it returns an object that torch does not know how to take apart; return a tensor, a tuple or a dict, or "
        "register the class with torch.export.register_dataclass",
    ),
    (("devices, cpu and meta", "devices, meta and cpu"), READS_KEPT),
)
_OTHERWISE = "call it with such a batch to see whether it runs, or give stage modules of your own with Stages"


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn errors of the capture into `InputError`, and silence warnings about tensors that LSTMs keep in a list."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The tensor attribute", UserWarning)
            yield
    except PipeplanError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        advice = next((words for signs, words in _ADVICE if any(sign in text for sign in signs)), _OTHERWISE)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        shown = lines[0][:300] if lines else type(error).__name__
        raise InputError(f"torch.export cannot capture {name}: {shown}. Advice: {advice}") from error


WITHIN = "within"
"""Key in a node's meta of the contexts in which it runs, outermost first."""


@dataclass(frozen=True)
class Captured:
    """A module's graph, with everything inlined.

    Attributes
    ----------
    graph : torch.fx.Graph
        Placeholders are the tensors of a batch, ``get_attr`` nodes parameters, buffers and constants by name. Every
        node's ``meta`` has ``val`` (a tensor without values), ``nn_module_stack`` and `WITHIN`.
    constants : mapping
        Tensors that the module made from Python numbers, by name, with their values.
    outputs : tuple
        The flattened outputs: a node, or a constant such as None.
    structure : TreeSpec
        Structure of the module's return value.
    """

    graph: fx.Graph
    constants: Mapping[str, Tensor]
    outputs: tuple[Any, ...]
    structure: pytree.TreeSpec


def export(module: nn.Module, inputs: Batch, training: bool) -> Captured:
    """Capture the module for inputs of these shapes.

    Parameters
    ----------
    training : bool
        Mode to capture. If the module itself is in that mode, submodules may be in the other one.

    Raises
    ------
    InputError
        If torch.export cannot capture it, or its return value has no tensors.
    """
    tensors(inputs)  # raises an error if the batch holds anything except tensors
    mode = FakeTensorMode()
    blank = on_fake(module, mode, "cpu")
    if blank.training != training:
        blank.train(training)
    given = mapped(inputs, lambda tensor: fake(tensor, mode, "cpu"))
    args, kwargs = ((), dict(given)) if isinstance(given, Mapping) else (given, {})
    args = tuple(args) if isinstance(args, tuple | list) else (args,)
    check_module_hooks(module)
    with (
        nothing_on_gradients(blank, type(module).__name__),
        explained(type(module).__name__),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        program = torch.export.export(blank, args, kwargs, strict=False)
    copy = _Copy(module, program)
    copy.placeholders(given)
    results = copy.inline(program.graph_module, copy.values, ())
    kinds = {spec.kind for spec in program.graph_signature.output_specs}
    if kinds - {OutputKind.USER_OUTPUT}:
        raise InputError(f"{type(module).__name__} writes into its inputs; return what it writes instead")
    if not any(isinstance(result, fx.Node) for result in results):
        raise InputError(f"{type(module).__name__} returns no tensor; a model to train must return one")
    copy.graph.output(tuple(results))
    return Captured(copy.graph, copy.constants, tuple(results), program.call_spec.out_spec)


@dataclass
class _Copy:
    """Copy of an exported program into one graph."""

    module: nn.Module
    program: Any
    graph: fx.Graph = field(default_factory=fx.Graph)
    constants: dict[str, Tensor] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)  # the value of each placeholder of the program

    def __post_init__(self) -> None:
        self._attributes: dict[str, fx.Node] = {}
        self._aliases = _names_of_each(self.module)

    def placeholders(self, given: Batch) -> None:
        """Create placeholders of batch tensors in their order; parameters, buffers and constants by name."""
        specs = self.program.graph_signature.input_specs
        found = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        users = [node for node, spec in zip(found, specs, strict=True) if spec.kind is InputKind.USER_INPUT]
        args, kwargs = pytree.tree_unflatten(users, self.program.call_spec.in_spec)
        ordered = [kwargs[name] for name in given] if isinstance(given, Mapping) else args
        made = {}
        for node in pytree.tree_leaves(ordered):
            made[node] = self.graph.placeholder(node.name)
            made[node].meta = _meta(node, ())
        for node, spec in zip(found, specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self.values.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else made[node])
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                self.values.append(_Attribute(spec.target, node.meta["val"]))
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                self.values.append(self._constant(spec.target, self.program.constants[spec.target], node))
            else:
                held = type(self.program.constants.get(spec.target)).__name__
                raise InputError(
                    f"{type(self.module).__name__} computes with {_article(held)}{_place(node)}, which is no tensor; "
                    "keep it out of the forward pass (draw with torch's default generator), or give stage modules of "
                    "your own with Stages"
                )

    def inline(self, owner: nn.Module, values: Sequence[Any], within: tuple[Any, ...]) -> list[Any]:
        """Copy a graph whose placeholders have these values, open regions in a context, and return its outputs."""
        env: dict[fx.Node, Any] = {}
        given = iter(values)
        for node in owner.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "get_attr":
                target = operator.attrgetter(node.target)(owner)
                env[node] = self._constant(node.target, target, node) if isinstance(target, Tensor) else target
            elif node.op == "output":
                return [self._resolved(env[a], node) if isinstance(a, fx.Node) else a for a in node.args[0]]
            elif node.op == "call_function":
                env[node] = self._called(node, env, within)
        raise AssertionError("a graph has an output")

    def _called(self, node: fx.Node, env: dict[fx.Node, Any], within: tuple[Any, ...]) -> Any:
        name = getattr(node.target, "__name__", "")
        args = [env[a] if isinstance(a, fx.Node) else a for a in node.args]
        if name == "wrap_with_set_grad_enabled":
            return self.inline(args[1], args[2:], (*within, ("grad", args[0])))
        if name == "wrap_with_autocast":
            return self.inline(args[4], args[5:], (*within, ("autocast", *args[1:4])))
        if node.target is operator.getitem and isinstance(args[0], list):
            return args[0][args[1]]
        if any(isinstance(a, nn.Module) for a in args):
            raise InputError(
                f"{type(self.module).__name__} has {name} inside, whose branches cannot be cut; write it as plain "
                "tensor operations (torch.where for torch.cond), or give stage modules of your own with Stages"
            )
        if _checks_only(node):
            return None

        def resolved(value: fx.Node) -> Any:
            return self._resolved(env[value], node)

        copied = self.graph.create_node(
            "call_function",
            node.target,
            fx.node.map_arg(node.args, resolved),
            fx.node.map_arg(node.kwargs, resolved),
            node.name,
        )
        copied.meta = _meta(node, within)
        return copied

    def _resolved(self, value: Any, user: fx.Node) -> Any:
        return self._attribute(value, user) if isinstance(value, _Attribute) else value

    def _attribute(self, attribute: "_Attribute", user: fx.Node) -> fx.Node:
        """Node of a parameter or buffer, under the name that the module of ``user`` has for it."""
        names = self._aliases[attribute.name]
        stack = tuple(user.meta.get("nn_module_stack", {}).values())
        path = stack[-1][0].partition("@")[0] if stack else ""
        name = next((name for name in names if name.rpartition(".")[0] == path), names[0])
        return self._get(name, attribute.value)

    def _constant(self, name: str, value: Tensor, node: fx.Node) -> fx.Node:
        if isinstance(value, FakeTensor) or value.is_meta:
            raise InputError(
                f"{type(self.module).__name__} uses a tensor that is neither parameter nor buffer and has no values"
                f"{_place(node)}; register it with register_buffer, and write x.detach() for x.data"
            )
        full = f"constant.{name.replace('.', '_')}"
        self.constants[full] = value.detach()
        return self._get(full, value)

    def _get(self, name: str, value: Tensor) -> fx.Node:
        if name not in self._attributes:
            first = next(iter(self.graph.nodes), None)
            place = self.graph.inserting_before(first) if first is not None else self.graph.inserting_before()
            with place:
                node = self.graph.create_node("get_attr", name)
            node.meta = {"val": value, WITHIN: ()}
            self._attributes[name] = node
        return self._attributes[name]


@dataclass(frozen=True)
class _Attribute:
    """A parameter or buffer, by one of its names, with a tensor of its shape and type."""

    name: str
    value: Tensor


def _meta(node: fx.Node, within: tuple[Any, ...]) -> dict[str, Any]:
    kept = {name: node.meta.get(name) for name in ("val", "stack_trace")}
    return {**kept, "nn_module_stack": node.meta.get("nn_module_stack", {}), WITHIN: within}


def _place(node: fx.Node) -> str:
    """Return the user's line that reads a placeholder first."""
    return next(filter(None, (place_in(user.meta.get("stack_trace")) for user in node.users)), "")


def _article(kind: str) -> str:
    return "a random generator of its own" if kind == "Generator" else f"an object of {kind}"


def _checks_only(node: fx.Node) -> bool:
    """True if the node only asserts a condition, which held when it was captured."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.returns and not schema.is_mutable


def _names_of_each(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """All names of the same parameter or buffer, in order, by each of its names."""
    groups: dict[int, list[str]] = {}
    for name, tensor in named_tensors(module):
        groups.setdefault(id(tensor), []).append(name)
    return {name: tuple(names) for names in groups.values() for name in names}
