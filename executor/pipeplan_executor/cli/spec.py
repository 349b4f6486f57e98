"""`Spec`: a workload by name, which other processes build."""

from dataclasses import dataclass

from pipeplan.frontend.workload import Workload, load_workload


@dataclass(frozen=True)
class Spec:
    """``module:function``, with the shape of a plain module's sample; calling it builds the workload."""

    name: str
    input: str | None = None

    def __call__(self) -> Workload:
        return load_workload(self.name, self.input)
