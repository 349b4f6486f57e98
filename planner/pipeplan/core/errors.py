"""Errors that pipeplan raises on purpose. Each message states the fault, with numbers, and the change to make."""


class PipeplanError(Exception):
    """Base of every error that a user's input can cause.

    Examples
    --------
    >>> issubclass(pipeplan.InfeasibleError, pipeplan.PipeplanError)
    True
    """


class InputError(PipeplanError):
    """A file, a name or an argument is wrong (command-line exit code 2).

    Examples
    --------
    >>> pipeplan.load_model("vgg-61")
    Traceback (most recent call last):
    pipeplan.core.errors.InputError: no model is called 'vgg-61' ...
    """


class InfeasibleError(PipeplanError):
    """No plan fits the limits; the text names changes that would (command-line exit code 1).

    Examples
    --------
    >>> pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, memory="100MB", depths=1)
    Traceback (most recent call last):
    pipeplan.core.errors.InfeasibleError: No plan fits: ...
    """


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
    """A plan breaks a rule that every plan must keep.

    Examples
    --------
    >>> result = pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, depths=2, replicas=1, schedules="gpipe")
    >>> pipeplan.validate_plan(result.plan, pipeplan.load_model("resnet-50"), pipeplan.load_cluster("4-v100-nvlink"))
    Traceback (most recent call last):
    pipeplan.core.errors.PlanError: ...
    """
