"""Plans of layers that a profile kept whole."""

from helpers.captured_models import tiny_unet
from helpers.plans import plan_for
from pipeplan.frontend.capture import capture_layers
from pipeplan.schedules import FAMILIES
from pipeplan_executor.stages.source import draw
from pipeplan_executor.stages.split import fit


def test_a_plan_of_modules_kept_whole_finds_them_again() -> None:
    """Its layers' names determine the modules that stay whole, so running it needs no patterns."""
    workload = tiny_unet()
    inputs = draw(workload, 2, 0)[0]
    names = capture_layers(workload.module, inputs, both_modes=False).names
    sequence = capture_layers(workload.module, inputs, both_modes=False, group=["Twice", "up.*"])
    assert set(sequence.names) - set(names)
    plan = plan_for(
        workload.module, sequence.names, (0, 3, 6), FAMILIES["gpipe"].write((1, 1), 2), held=sequence.parameters
    )
    assert fit(plan, tiny_unet).names == sequence.names
