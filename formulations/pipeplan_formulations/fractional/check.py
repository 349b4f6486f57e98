"""What makes an instance of the fractional chain partition problem one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeplan_formulations.fractional.instance import FractionalPartition


def check(problem: "FractionalPartition") -> None:
    """Raise ValueError for what `FractionalPartition` lists."""
    if problem.forward.ndim != 2 or not all(problem.forward.shape):
        raise ValueError(f"forward has shape {problem.forward.shape}, expected (stages, layers), at least one of each")
    stages, layers = problem.forward.shape
    times = ("forward", "backward", "forward_streamed", "backward_streamed", "update")
    sizes = ("resident", "saved", "workspace", "weights", "bytes_through", "bytes_own")
    shapes = {
        **dict.fromkeys(times, (stages, layers)),
        **dict.fromkeys(("through", "own"), (stages - 1, layers)),
        **dict.fromkeys(sizes, (layers,)),
        **dict.fromkeys(("in_flight", "limit", "on_chip"), (stages,)),
        "latency": (stages - 1,),
    }
    for name, shape in shapes.items():
        array = getattr(problem, name)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
        if array.size and int(array.min()) < 0:
            raise ValueError(f"{name} holds a negative number: {int(array.min())}")
    for name in ("forward", "backward"):
        if (getattr(problem, f"{name}_streamed") < getattr(problem, name)).any():
            raise ValueError(f"{name} takes longer with weights on chip than with streamed ones")
    if problem.through[:, 0].any() or problem.bytes_through[0]:
        raise ValueError("nothing crosses in front of layer 0; through[:, 0] and bytes_through[0] must be 0")
    for through, own in ((problem.through, problem.own), (problem.bytes_through, problem.bytes_own)):
        if (through[..., 1:] > (through + own)[..., :-1]).any():
            raise ValueError("more crosses in front of a layer than in front of the one before and its output")
    if problem.micro_batches < 1:
        raise ValueError(f"micro_batches must be at least 1, not {problem.micro_batches}")
    if problem.ahead is not None and (
        problem.two_lanes or problem.ahead.shape != (stages,) or int(problem.ahead.min()) < 1
    ):
        raise ValueError(f"ahead is {problem.ahead}; give a number above 0 for each of {stages} stages, on one lane")
    for path in problem.paths:
        if problem.objective != "step" or path.sizes != (stages,) * 4 + (stages - 1,) * 2 or any(path.reduce):
            raise ValueError(f"{path} is no path of a step on {stages} stages without reductions")
    if problem.objective not in ("step", "bottleneck"):
        raise ValueError(f"objective is {problem.objective!r}; choose step or bottleneck")
