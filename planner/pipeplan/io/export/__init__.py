"""Export of plans to the formats of other tools. To add one, write a function and its line in `EXPORTS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pipeplan.core.errors import InputError
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Schedule
from pipeplan.core.wording import hint
from pipeplan.io.export.device_map import device_map_text, stages_text
from pipeplan.io.export.torch_csv import torch_csv_text


@dataclass(frozen=True, slots=True)
class Export:
    """A format: one line for lists, and ``text(plan)``, which raises `InputError` for a plan that it cannot express."""

    summary: str
    text: Callable[[Plan], str]


def _step(plan: Plan) -> Schedule:
    """The lists of a plan's step, of which each batch is one."""
    if plan.staleness:
        raise InputError(
            "torch's schedule files end with a batch, and this plan's gradients are one step late, without a flush; "
            "keep the plan file, which says it, or solve without staleness"
        )
    return plan.schedule


EXPORTS: Mapping[str, Export] = MappingProxyType(
    {
        "torch-csv": Export(
            "the order of actions on each rank, for torch.distributed.pipelining", lambda p: torch_csv_text(_step(p))
        ),
        "device-map": Export("the device of each layer, as JSON", device_map_text),
        "stages": Export("the layers of each stage, as JSON", stages_text),
    }
)
"""Every format by its name."""


def exported(plan: Plan, name: str) -> str:
    """Return a plan in the format of that name.

    Raises
    ------
    InputError
        If there is no such format, or it cannot express the plan.
    """
    if name not in EXPORTS:
        raise InputError(f"no export is called {name!r}{hint(name, EXPORTS)}; known are {', '.join(EXPORTS)}")
    return EXPORTS[name].text(plan)
