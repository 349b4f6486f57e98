"""Memory that is left free on every device."""

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job
from pipeplan.solve import solve

MODEL = model_of([5, 7, 6, 4], saved=[8] * 4, output=[2] * 4, parameters=[40] * 4)


@pytest.mark.parametrize(("reserve", "same"), [(0.25, 750), (250, 750), (0.2501, 749), (2000, 0)])
def test_it_is_as_much_less_memory(reserve: float, same: int) -> None:
    """Devices of 1000 bytes of which some are left free are devices of the rest: equal plans, or none in both."""
    free = Job(8, reserve=reserve, depths=(2,), replicas=(1,))
    assert free.usable(1000) == same

    def found(job: Job, memory: int) -> tuple[int, tuple[int, ...]] | None:
        try:
            plan = solve(MODEL, equal_devices(2, memory=memory), job=job).plan
        except InfeasibleError:
            return None
        return plan.step_time, plan.pipeline.limits

    assert found(free, 1000) == found(Job(8, depths=(2,), replicas=(1,)), same)


def test_the_answer_says_so() -> None:
    """The text, the data and the message if nothing fits name what is left free; without it a plan fits."""
    result = solve(MODEL, equal_devices(2, memory=1000), 8, reserve=0.05)
    assert "left free of each device's own memory: 5%" in str(result)
    assert result.as_json()["reserve"] == 0.05
    for reserve in (0.9, 0.83):
        with pytest.raises(InfeasibleError, match=r"beside the .* that are left free"):
            solve(MODEL, equal_devices(2, memory=1000), 8, reserve=reserve)
