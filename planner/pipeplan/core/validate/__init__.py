"""An independent check of schedules and plans. It asks no solver.

Questions, each with an error that lists every violation:

- `validate_schedule`: is every action there once, on its stage's device, and can all lists be played to the end
  (`validate_order`)?
- `validate_memory`: does what each list holds, counted action by action, fit its device?
- `validate_plan`: does a plan belong to this model and this cluster, and is all that it claims consistent?

`pipeplan.simulate.claims` answers a fourth: do a plan's times, memory and bound follow from its own tables?
"""

from pipeplan.core.validate.memory import validate_memory
from pipeplan.core.validate.plan import validate_plan
from pipeplan.core.validate.schedule import validate_order, validate_schedule

__all__ = ["validate_memory", "validate_order", "validate_plan", "validate_schedule"]
