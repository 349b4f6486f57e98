"""Validation of a chain partition instance."""

from pipeplan_formulations.common.objective import OBJECTIVES
from pipeplan_formulations.partition.tables import PartitionTables


def check(problem: PartitionTables) -> None:
    """Raise ``ValueError`` if shapes disagree, a number is out of range, or a word is not known."""
    stages, layers = problem.forward.shape
    for name in ("cuts", "where", "recomputable"):
        array = getattr(problem, name)
        if array is not None and array.dtype != bool:
            raise ValueError(f"{name} holds {array.dtype}, expected bool")
    if problem.micro_batches < 1:
        raise ValueError(f"micro_batches must be at least 1, not {problem.micro_batches}")
    if problem.samples is not None and problem.samples < 1:
        raise ValueError(f"a step holds at least one sample, not {problem.samples}")
    _check_counts(problem)
    if problem.overlap not in ("none", "copy", "stream"):
        raise ValueError(f"overlap is {problem.overlap!r}; choose none, copy or stream")
    if problem.objective not in OBJECTIVES:
        raise ValueError(f"objective is {problem.objective!r}; choose from {', '.join(OBJECTIVES)}")
    for tie in problem.ties:
        if tie.layers[-1] >= layers:
            raise ValueError(f"a tie joins layers {tie.layers}; there are {layers} layers")
        if len(tie.resident) != stages:
            raise ValueError(f"a tie has numbers for {len(tie.resident)} stages; there are {stages}")
    if problem.weight is not None and (problem.objective != "step" or problem.paths):
        raise ValueError("split backwards go with objective step, and without path cuts, whose backwards are whole")
    if problem.paths and problem.endless:
        raise ValueError("path cuts bound steps; the bottleneck objective has none")
    problem.check_roles()
    _check_weights(problem)
    _check_resources(problem, stages, layers)
    for path in problem.paths:
        if path.sizes != (stages, stages, stages, stages, stages - 1, stages - 1):
            raise ValueError(f"a path cut has rows of {list(path.sizes)} coefficients; there are {stages} stages")
        if any(not 0 <= link < stages - 1 or len(row) != layers - 1 for link, row in path.surplus):
            raise ValueError(f"a path cut has a surplus for links or cuts that do not exist: {path.surplus}")


def _check_weights(problem: PartitionTables) -> None:
    for name in ("ahead_weight", "service_weight"):
        if getattr(problem, name) is None:
            continue
        if problem.weight is None:
            raise ValueError(f"{name} is given without weight: split backwards have both")
        problem.check_at_most(name, "weight")


def _check_resources(problem: PartitionTables, stages: int, layers: int) -> None:
    if problem.resources and problem.endless:
        raise ValueError("link resources bound steps; the bottleneck objective has none")
    for resource in problem.resources:
        rows = [resource.busy] if resource.beyond is None else [resource.busy, resource.beyond]
        if not 0 <= resource.link <= stages - 1 - len(rows):
            raise ValueError(
                f"a resource of links {resource.link} to {resource.link + len(rows) - 1}; there are {stages - 1} links"
            )
        if any(row.shape != (layers - 1,) or (row.size and int(row.min()) < 0) for row in rows):
            raise ValueError(f"a link resource of link {resource.link} needs {layers - 1} times of 0 or more")
        if resource.beyond is not None and problem.overlap == "stream":
            raise ValueError("where tensors stream, a resource serves one link")


def _check_counts(problem: PartitionTables) -> None:
    most = {"counts": problem.micro_batches, "link_counts": problem.micro_batches}
    if problem.round_trip == "ahead":
        del most["link_counts"]  # a micro-batch crosses a link in slices
    for name, limit in most.items():
        array = getattr(problem, name)
        if array is not None and array.size and not 1 <= int(array.min()) <= int(array.max()) <= limit:
            raise ValueError(f"{name} holds {array.tolist()}; each is 1 to {limit} micro-batches")
