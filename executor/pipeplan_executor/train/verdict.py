"""`Verdict`: whether a plan computes what the unsplit model computes."""

from dataclasses import dataclass

from pipeplan.core.errors import PlanError


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison with the unsplit model.

    Attributes
    ----------
    error : float
        Largest relative difference, over loss and all gradients of all ranks.
    tolerance : float
        The error that rounding explains.
    spread : float or None
        Largest relative difference of the unsplit model to itself with its micro-batches summed in another order; None
        where it was not needed.
    dtype : str
        ``'float64'``, or ``'float32'`` for a model that cannot be computed in float64.
    changed : str
        What the plan changes although it computes what it should: a loss that is no mean over samples. Empty if
        nothing.
    compared : str
        What it was compared with, unless that was the unsplit module on the whole batch at once.
    what : str
        What was compared.
    """

    error: float
    tolerance: float
    spread: float | None
    dtype: str
    changed: str = ""
    compared: str = ""
    what: str = "loss and gradients"

    @property
    def holds(self) -> bool:
        """Whether the plan computes what the unsplit model computes."""
        return self.error <= self.tolerance and not self.changed

    def __str__(self) -> str:
        """Return the verdict in one sentence."""
        how = f"relative, {self.dtype}"
        if self.dtype == "float32":
            how += ", as some of its operations know no float64"
        if self.spread is not None:
            how += f"; the unsplit model differs from itself by {self.spread:.1e} in another order of its micro-batches"
        how += f"; compared with {self.compared}" if self.compared else ""
        if self.changed:
            own = "equal" if self.error <= self.tolerance else f"differ by {self.error:.1e} from"
            return (
                f"the plan does not train what the unsplit model trains: {self.changed}. "
                f"{self.what.capitalize()} {own} "
                f"those of the unsplit model on the plan's micro-batches ({how})"
            )
        if self.holds:
            return f"{self.what} equal the unsplit model's to {self.error:.1e} ({how})"
        return (
            f"{self.what} differ from the unsplit model's by {self.error:.1e} ({how}); "
            f"at most {self.tolerance:.0e} is rounding. The model must compute the same every time, and treat the "
            "samples of a batch apart, except by batch norm"
        )


def check_verdict(verdict: Verdict | None) -> None:
    """Refuse gradients that differ from the unsplit model's.

    Raises
    ------
    PlanError
        With the verdict.
    """
    if verdict is not None and not verdict.holds:
        raise PlanError(str(verdict))
