"""A workload by name, for other processes to build."""

from dataclasses import dataclass

from pipeplan.frontend.workload import Workload, load_workload


@dataclass(frozen=True)
class Spec:
    """``module:function``, with what a sample of a plain module looks like; calling it builds the workload."""

    name: str
    input: str | None = None

    def __call__(self) -> Workload:
        return load_workload(self.name, self.input)
