"""The answer of a search for a schedule."""

from dataclasses import dataclass

from pipeplan.core.schedule import Schedule
from pipeplan_formulations.common.report import Status, Stop


@dataclass(frozen=True)
class Found:
    """The best schedule of a pipeline that was found.

    Attributes
    ----------
    schedule : Schedule or None
        That of a family, where nothing better was found.
    value : int or None
        Its simulated nanoseconds.
    bound : int
        No schedule of the pipeline that keeps the memory limits takes less, in any order, on the lanes that its devices
        may have (`pipeplan.search.scheduling.lanes`).
    status : Status
        What we have.
    stop : Stop
        Why the search ended.

    Raises
    ------
    ValueError
        If the parts contradict each other.
    """

    schedule: Schedule | None
    value: int | None
    bound: int
    status: Status
    stop: Stop

    def __post_init__(self) -> None:
        if (self.schedule is None) != (self.value is None):
            raise ValueError(f"a schedule of {self.value} ns: {self.schedule}")
        if (self.value is not None) != (self.status in (Status.OPTIMAL, Status.FEASIBLE)):
            raise ValueError(f"status {self.status} does not fit a value of {self.value}")
        if self.value is not None and self.bound > self.value:
            raise ValueError(f"bound {self.bound} lies above the value {self.value}")

    @property
    def gap(self) -> float | None:
        """(value − bound) / value; None without a schedule, 0 for a value of 0."""
        if self.value is None:
            return None
        return (self.value - self.bound) / self.value if self.value else 0.0
