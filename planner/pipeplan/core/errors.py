"""Errors that pipeplan raises on purpose. Each message states the fault, with numbers, and the change to make."""


class PipeplanError(Exception):
    """Base of every error that a user's input can cause."""


class InputError(PipeplanError):
    """A file, a name or an argument is wrong (command-line exit code 2)."""


class InfeasibleError(PipeplanError):
    """No plan fits the limits; the text names changes that would (command-line exit code 1)."""


class UndecidedError(PipeplanError):
    """The search ended without a plan and without a proof that there is none.

    ``stop`` is the reason: a limit, or 'exhausted' if more time would not help. ``bound`` is the bound proved by then,
    in nanoseconds.
    """

    def __init__(self, stop: str, bound: int, needed: float | None = None) -> None:
        why = f"no plan was found before the search was stopped ({stop}); give it more time"
        if stop == "exhausted":
            why = (
                f"no plan was found, and it is not proved that none fits: no plan that does takes less than "
                f"{bound / 1e9:.3g} s; ask for fewer choices (--depths, --replicas, --schedules), or with more memory"
            )
        elif needed is not None:
            why += (
                f", or fewer micro-batches: to simulate and to check the smallest plan that was met takes about "
                f"{needed:.0f} s"
            )
        super().__init__(why)
        self.stop, self.bound = stop, bound


class PlanError(PipeplanError):
    """A plan breaks a rule that every plan must keep."""
