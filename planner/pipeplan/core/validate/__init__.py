"""Independent checks of schedules and plans, without a solver.

Each check raises an error that lists every violation:

- `validate_schedule`: every action is there once, on its stage's device, and all lists can run to the end
  (`validate_order`);
- `validate_memory`: the memory of each list, counted action by action, fits its device;
- `validate_plan`: a plan belongs to this model and this cluster, and its claims are consistent.

A fourth check is `pipeplan.simulate.claims`: a plan's times, memory and bound follow from its own tables.
"""

from pipeplan.core.validate.memory import validate_memory
from pipeplan.core.validate.plan import validate_plan
from pipeplan.core.validate.schedule import validate_order, validate_schedule

__all__ = ["validate_memory", "validate_order", "validate_plan", "validate_schedule"]
