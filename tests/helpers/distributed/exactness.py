"""How exact a plan runs."""

from typing import Any

from pipeplan_executor.train.verify import verify


def worst_error(*arguments: Any, **options: Any) -> float:
    """The largest relative difference of loss and gradients to the unsplit model's, of the arguments of `verify`."""
    return verify(*arguments, **options).error
