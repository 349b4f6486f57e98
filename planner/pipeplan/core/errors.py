"""Errors that pipeplan raises on purpose. Each message states the fault, with numbers, and the change to make."""


class PipeplanError(Exception):
    """Base of every error that a user's input can cause."""


class InputError(PipeplanError):
    """A file, a name or an argument is wrong (command-line exit code 2)."""


class InfeasibleError(PipeplanError):
    """No plan fits the limits; the text names changes that would (command-line exit code 1)."""


class UndecidedError(PipeplanError):
    """The search was stopped before it had a plan, or a proof that there is none.

    ``bound`` is the bound proved by then, in nanoseconds; ``stop`` is the reason of the stop.
    """

    def __init__(self, stop: str, bound: int, needed: float | None = None) -> None:
        why = f"no plan was found before the search was stopped ({stop}); give it more time"
        if needed is not None:
            why += (
                f", or fewer micro-batches: to simulate and to check the smallest plan that was met takes about "
                f"{needed:.0f} s"
            )
        super().__init__(why)
        self.stop, self.bound = stop, bound


class PlanError(PipeplanError):
    """A plan breaks a rule that every plan must keep."""
