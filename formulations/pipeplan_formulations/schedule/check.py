"""What makes an instance one: its lists fit each other, and no number is nonsense."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeplan_formulations.schedule.instance import PipelineSchedule

_OF_STAGES = ("forward", "backward", "weight", "split", "ending", "taken", "freed", "freed_by_weight")
_OF_BOUNDARIES = ("lag", "lag_back")
_OF_WIRES = ("occupancy", "occupancy_back", "wires", "wires_back")


def check(problem: "PipelineSchedule") -> None:
    """Refuse what is no instance.

    Raises
    ------
    ValueError
        Naming the first fault and its numbers.
    """
    if not problem.device or problem.micro_batches < 1:
        raise ValueError(f"{problem.stages} stages and {problem.micro_batches} micro-batches; give at least one")
    _lengths(problem)
    for s in range(problem.stages):
        if problem.taken[s] != problem.freed[s] + problem.freed_by_weight[s]:
            raise ValueError(
                f"stage {s} takes {problem.taken[s]} bytes a micro-batch and frees "
                f"{problem.freed[s]} + {problem.freed_by_weight[s]}; both must be the same"
            )
        if not problem.split[s] and (problem.weight[s] or problem.freed_by_weight[s]):
            raise ValueError(f"stage {s} has a joined backward, hence no W that takes time or frees bytes")
    if problem.overlap not in ("copy", "stream", "none"):
        raise ValueError(f"overlap is copy, stream or none, not {problem.overlap!r}")
    if problem.overlap == "none" and any(problem.two_lanes):
        raise ValueError("a device with two lanes does not wait while it sends; its overlap is copy or stream")
    _ways(problem, "", problem.forward)
    _ways(problem, "_back", problem.backward[1:])


def _lengths(problem: "PipelineSchedule") -> None:
    devices, boundaries = len(problem.base), problem.stages - 1
    wanted = dict.fromkeys(_OF_STAGES, problem.stages) | dict.fromkeys(_OF_BOUNDARIES, boundaries) | {"limit": devices}
    for name, length in wanted.items():
        values = getattr(problem, name)
        if len(values) != length:
            raise ValueError(f"{name} has {len(values)} entries; {length} are needed")
        if name != "limit" and min(values, default=0) < 0:
            raise ValueError(f"{name} has a negative entry: {values}")
    for name, length in (dict.fromkeys(_OF_WIRES, boundaries) | {"two_lanes": devices}).items():
        values = getattr(problem, name)
        if values and len(values) != length:
            raise ValueError(f"{name} has {len(values)} entries; {length} or none are needed")
    if not all(0 <= d < devices for d in problem.device):
        raise ValueError(f"stages lie on {problem.device}; there are devices 0 to {devices - 1}")


def _ways(problem: "PipelineSchedule", direction: str, senders: tuple[int, ...]) -> None:
    times, wires = getattr(problem, f"occupancy{direction}"), getattr(problem, f"wires{direction}")
    if bool(times) != bool(wires):
        raise ValueError(f"occupancy{direction} and wires{direction} belong together; give both or none")
    for s, (sender, time, own) in enumerate(zip(senders, times, wires, strict=False)):
        if time < 0 or (time > 0) != bool(own) or len(set(own)) < len(own):
            raise ValueError(
                f"occupancy{direction} of boundary {s} is {time} on wires {own}; give a time above 0 and each wire "
                "once, or 0 and no wire"
            )
        if problem.overlap == "none" and time > sender:
            raise ValueError(
                f"occupancy{direction} of boundary {s} is {time} and who sends takes {sender}; without overlap that "
                "includes the time of its tensor"
            )
