"""Workers for the tests of 3-D linear maps, on cubes of eight processes."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.distributed.everywhere import greatest
from pipeplan_executor.sharding.cube import Axes, axes_of, layer_norm_3d, linear_3d, part_of

CUBES = ((2, 2, 2), (1, 2, 4), (4, 2, 1), (2, 1, 4))
BATCH, TOKENS, INPUTS, OUTPUTS = 16, 3, 16, 24
NAMES = {"all_gather_into_tensor": "gather", "reduce_scatter_tensor": "scatter", "all_reduce": "sum"}


class Sent(NamedTuple):
    """Collectives of a pass by kind, and bytes that a process receives in rings."""

    counts: dict[str, int]
    bytes: int


class Received(TorchDispatchMode):
    """Count what a process receives in gathers and scatters."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        made = func(*args, **(kwargs or {}))
        if NAMES.get(name) in ("gather", "scatter"):
            self.bytes += abs(made.nbytes - args[0].nbytes)
        return made


def seen(call: Callable[..., Any], *arguments: Any) -> tuple[Any, Sent]:
    """The result of a call, and what it sends."""
    with CommDebugMode() as kinds, Received() as received:
        made = call(*arguments)
    counts = Counter({NAMES[str(kind).rpartition(".")[2]]: n for kind, n in kinds.get_comm_counts().items()})
    return made, Sent(dict(counts), received.bytes)


def meshes() -> dict[str, DeviceMesh]:
    """The cubes."""
    return {"x".join(map(str, cube)): init_device_mesh("cpu", cube, mesh_dim_names=("w", "i", "o")) for cube in CUBES}


def input_part(whole: Tensor, axes: Axes) -> Tensor:
    """A linear map's input, or its gradient."""
    between = [()] * (whole.dim() - 2)
    return part_of(whole, (axes.weight, axes.input), *between, (axes.output,))


def weight_part(whole: Tensor, axes: Axes) -> Tensor:
    """A weight or a bias, or its gradient."""
    return part_of(whole, (axes.input, axes.weight), *([(axes.output,)] if whole.dim() > 1 else []))


def apart(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The largest difference of two tensors, relative to the largest number in the second if that is above 1."""
    plain = [(one.detach(), other.detach()) for one, other in pairs]
    return greatest(max(float((one - other).abs().max() / max(other.abs().max(), 1)) for one, other in plain))


def single(bias: bool) -> dict[str, tuple[float, Sent, Sent]]:
    """Error and collectives of one linear map on every cube, kept or gathered again."""
    torch.manual_seed(0)
    whole = nn.Linear(INPUTS, OUTPUTS, bias=bias, dtype=torch.float64)
    x = torch.randn(BATCH, TOKENS, INPUTS, dtype=torch.float64, requires_grad=True)
    wanted = whole(x)
    upstream = torch.randn_like(wanted)
    wanted.backward(upstream)
    found = {}
    for name, mesh in meshes().items():
        for kept in (True, False):
            axes = axes_of(mesh)
            own = input_part(x.detach(), axes).requires_grad_()
            parts = [weight_part(each.detach(), axes).requires_grad_() for each in whole.parameters()]
            made, forward = seen(linear_3d, own, parts[0], axes, kept, *parts[1:])
            _, backward = seen(made.backward, input_part(upstream, axes.swapped))
            pairs = [(made, input_part(wanted.detach(), axes.swapped)), (own.grad, input_part(x.grad, axes))]
            pairs += [(p.grad, weight_part(q.grad, axes)) for p, q in zip(parts, whole.parameters(), strict=True)]
            found[f"{name} {'kept' if kept else 'again'}"] = apart(pairs), forward, backward
    return found


class Block(nn.Module):
    """A block of a transformer, with attention over four heads and a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out, self.widen, self.narrow = (
            nn.Linear(*shape) for shape in ((width, width), (width, 2 * width), (2 * width, width))
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def run(self, x: Tensor, linear: Callable[..., Tensor], norm: Callable[..., Tensor], heads: int) -> Tensor:
        """The output; ``linear(map, x, swapped)``, ``norm(module, x)``, and the heads of this process."""
        y = norm(self.norms[0], x)
        split = [linear(each, y, False).unflatten(-1, (heads, -1)).transpose(1, 2) for each in self.heads]
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(self.out, mixed, True)
        wide = functional.gelu(linear(self.widen, norm(self.norms[1], x), False))
        return x + linear(self.narrow, wide, True)


HEADS, WIDTH = 4, 16


def block() -> dict[str, tuple[float, Sent, Sent]]:
    """Error and collectives of a whole block on every cube, with its axes in several orders."""
    torch.manual_seed(1)
    whole = Block(WIDTH).double()
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    wanted = whole.run(x, lambda own, y, _: own(y), lambda own, y: own(y), HEADS)
    upstream = torch.randn_like(wanted)
    wanted.backward(upstream)
    found = {}
    for (name, mesh), order in zip(meshes().items(), ((0, 1, 2), (0, 2, 1), (2, 0, 1), (1, 0, 2)), strict=True):
        axes = axes_of(mesh, order)
        parts: dict[int, Tensor] = {}

        def part(parameter: Tensor, cut: Callable[[Tensor], Tensor], parts: dict[int, Tensor] = parts) -> Tensor:
            return parts.setdefault(id(parameter), cut(parameter.detach()).requires_grad_())

        def linear(own: nn.Linear, y: Tensor, swapped: bool, axes: Axes = axes, part: Any = part) -> Tensor:
            there = axes.swapped if swapped else axes
            weight, bias = (part(each, lambda whole: weight_part(whole, there)) for each in (own.weight, own.bias))
            return linear_3d(y, weight, there, swapped, bias)

        def norm(own: nn.LayerNorm, y: Tensor, axes: Axes = axes, part: Any = part) -> Tensor:
            cut = [part(each, lambda whole: part_of(whole, (axes.output,))) for each in (own.weight, own.bias)]
            return layer_norm_3d(y, *cut, axes, own.eps)

        own = input_part(x.detach(), axes).requires_grad_()
        made, forward = seen(whole.run, own, linear, norm, HEADS // axes.input.size())
        _, backward = seen(made.backward, input_part(upstream, axes))
        pairs = [(made, input_part(wanted.detach(), axes)), (own.grad, input_part(x.grad, axes))]
        for module, there in (
            (whole.heads, axes),
            (whole.widen, axes),
            (whole.out, axes.swapped),
            (whole.narrow, axes.swapped),
        ):
            pairs += [(parts[id(each)].grad, weight_part(each.grad, there)) for each in module.parameters()]
        pairs += [(parts[id(p)].grad, part_of(p.grad, (axes.output,))) for p in whole.norms.parameters()]
        assert len(pairs) == 2 + len(list(whole.parameters()))
        found[name] = apart(pairs), forward, backward
    return found


def chained() -> tuple[float, Sent, Sent, tuple[int, int]]:
    """Two linear maps and a function between them: error, collectives, and bytes kept if gathered again or not."""
    torch.manual_seed(2)
    whole = nn.Sequential(*(nn.Linear(a, b, False, dtype=torch.float64) for a, b in ((INPUTS, 32), (32, INPUTS))))
    x = torch.randn(BATCH, INPUTS, dtype=torch.float64, requires_grad=True)
    wanted = whole[1](whole[0](x).relu())
    wanted.square().sum().backward()
    axes = axes_of(meshes()["2x2x2"])
    kept = []
    for gathered in (False, True):
        own = input_part(x.detach(), axes).requires_grad_()
        places = zip(whole, (axes, axes.swapped), strict=True)
        one, two = (weight_part(each.weight.detach(), there).requires_grad_() for each, there in places)

        def call(own: Tensor = own, one: Tensor = one, two: Tensor = two, gathered: bool = gathered) -> Tensor:
            return linear_3d(linear_3d(own, one, axes, gathered).relu(), two, axes.swapped, gathered)

        saved: dict[int, int] = {}

        def pack(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            call()
        kept.append(sum(saved.values()))
        made, forward = seen(call)
        _, backward = seen(made.square().sum().backward)
    pairs = [(made, input_part(wanted.detach(), axes)), (own.grad, input_part(x.grad, axes))]
    pairs += [
        (one.grad, weight_part(whole[0].weight.grad, axes)),
        (two.grad, weight_part(whole[1].weight.grad, axes.swapped)),
    ]
    return apart(pairs), forward, backward, (kept[0], kept[1])


def refused() -> list[str]:
    """What is said about shapes that do not fit, and the type of what is made under autocast."""
    axes = axes_of(meshes()["2x2x2"])
    said = []
    for x, weight in ((torch.ones(4, 3), torch.ones(2, 4)), (torch.ones(1, 4), torch.ones(2, 4))):
        try:
            linear_3d(x, weight, axes if x.shape[0] > 1 else axes_of(meshes()["2x1x4"]))
        except ValueError as error:
            said.append(str(error))
    try:
        part_of(torch.ones(6, 4), (axes.weight, axes.input), (axes.output,))
    except ValueError as error:
        said.append(str(error))
    with torch.autocast("cpu", torch.bfloat16):
        x = torch.ones(2, 4, requires_grad=True)
        made = linear_3d(x, torch.ones(2, 4), axes)
    made.sum().backward()
    dist.barrier()
    return [*said, str(made.dtype), str(x.grad.dtype)]
