"""`GraphNode`: all partitions of a model along downsets at one micro-batch size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeplan.core.model import Model
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step
from pipeplan.search.evaluate import evaluate
from pipeplan.search.graph.loads import graph_problem
from pipeplan.search.graph.reach import common_link, widths
from pipeplan.search.space.device_groups import Mode, arrange
from pipeplan.search.space.space import Space
from pipeplan_formulations import graph
from pipeplan_formulations.common.report import Limits, Progress, Status, Stop
from pipeplan_formulations.graph import Stages


def reordered(model: Model, stages: Sequence[Sequence[int]]) -> tuple[Model, tuple[int, ...]]:
    """Return the model with its layers in the order of the stages, and the boundaries of the stages in it.

    ::

        listed   0 1 2 3 4 5      stages {0, 2} {1, 3} {4, 5}      reordered   0 2 │ 1 3 │ 4 5

    Within a stage the listed order stays. If the stages are differences of downsets, a layer still comes after all
    layers that it reads.
    """
    order = [i for stage in stages for i in sorted(stage)]
    boundaries = [0]
    for stage in stages:
        boundaries.append(boundaries[-1] + len(stage))
    profiles = tuple(replace(p, costs=tuple(p.costs[i] for i in order)) for p in model.profiles)
    layers = tuple(model.layers[i] for i in order)
    return replace(model, layers=layers, profiles=profiles, slice_profiles=()), tuple(boundaries)


def graph_nodes(space: Space) -> Iterator["GraphNode"]:
    """One node per micro-batch size; if all stages must have equally many replicas, one per number of replicas too."""
    for size in space.sizes:
        choices = widths(space, size)
        numbers = sorted({width.replicas for width in choices}) if space.job.equal_replicas else [None]
        for number in numbers:
            own = tuple(width for width in choices if number in (None, width.replicas))
            yield GraphNode(space.lower_bounds(size).evenly_shared(space.cluster), space, size, own)


@dataclass
class GraphNode(Node):
    """All plans at one micro-batch size, with stages of the widths in ``choices``."""

    bound: int
    space: Space
    size: int
    choices: tuple[Mode, ...]

    @property
    def rank(self) -> tuple[int, ...]:
        """Larger micro-batches later."""
        return (0, self.size)

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Solve under each family; the node stays open if the time ends before that."""
        bounds: list[int] = []
        late = False
        link = common_link(self.space.cluster)
        assert link is not None
        for family in self.space.families:
            problem, choices = graph_problem(self.space, self.size, family, link, self.choices)
            limits = Limits(max(search.left, 0.0), search.limits.gap, search.limits.workers, search.limits.seed)
            backend = search.backend if search.backend != "cpsat" else "auto"
            report = graph.solve(problem, limits, on_progress=self._progress(search), backend=backend)
            if report.status is Status.INFEASIBLE:
                continue
            if report.solution is not None:
                self._submit(search, family.name, report.solution, choices)
            bounds.append(report.bound)
            if report.stop is Stop.INTERRUPT:
                raise KeyboardInterrupt
            late = late or report.stop is Stop.TIME
        if late and search.left <= 0:
            self.bound = max(self.bound, min(bounds))
            return Step.split([self])
        return Step((), min(bounds, default=None))

    def _progress(self, search: PlanSearch) -> Progress:
        """A callback that reports the better of the solver's and the search's values and bounds."""

        def report(value: int | None, bound: int) -> None:
            known = [each for each in (value, search.value) if each is not None]
            search.on_progress(min(known, default=None), max(bound, self.bound), 1)

        return report

    def _submit(self, search: PlanSearch, family: str, stages: Stages, choices: Sequence[Mode]) -> None:
        """Submit the plan of a solution, on the model reordered by stages."""
        groups = arrange(self.space.classes, tuple(choices[stage.mode] for stage in stages))
        assert groups is not None
        model, boundaries = reordered(self.space.model, [stage.groups for stage in stages])
        job = replace(self.space.job, schedules=(family,))
        for candidate in Space(model, self.space.cluster, job).candidates(groups, self.size):
            if candidate.fits(boundaries):
                search.submit(evaluate(search.cluster_of(candidate), candidate, boundaries))
