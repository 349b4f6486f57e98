"""`Robust`: the spread of varying times, and the statistic by which plans are then chosen."""

import re
from dataclasses import dataclass
from math import ceil

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown, whole, written

SAMPLES = 1000
"""Default number of perturbed steps of each plan."""
SHOWN = 0.95
"""The quantile that is shown where plans are chosen by their mean."""
BEYOND = 10
"""Samples that must lie beyond a quantile, so that its estimate does not depend on a few of them."""
MOST = 10**6
"""Largest number of samples."""
WIDEST = 1.0
"""The largest relative spread."""

_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Robust:
    """Spread of times and the statistic by which plans are chosen.

    Attributes
    ----------
    spread : float
        Standard deviation of the time of an action or a transfer, over its mean: 0.05 is 5 %.
    device_spread : float
        The same for a factor that each device draws once per step and that scales all its times.
    quantile : float or None
        Choose by this quantile of the step time; None chooses by its mean.
    samples : int or None
        Perturbed steps of each plan. None is `SAMPLES`, or as many as the quantile needs; fewer where each must be
        simulated separately and takes long.

    Raises
    ------
    InputError
        If a number lies outside its range; the text gives the range.

    Notes
    -----
    Factors are log-normal with mean 1 and standard deviation c, the spread: exp(σ z − σ² / 2) with z standard normal
    and σ² = ln(1 + c²).

    Examples
    --------
    >>> pipeplan.Robust(0.05, quantile=0.95).spread
    0.05
    """

    spread: float
    device_spread: float = 0.0
    quantile: float | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("spread", self.spread), ("device_spread", self.device_spread)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= WIDEST:
                raise InputError(
                    f"{name} {shown(value)} is not a relative spread of times; give the standard deviation over the "
                    f"mean, between 0% and {WIDEST:.0%}, like 5% or 0.05"
                )
        if self.quantile is not None and not (isinstance(self.quantile, int | float) and 0 < self.quantile < 1):
            raise InputError(
                f"quantile {shown(self.quantile)} lies outside (0, 1); 0.95 chooses by the time that 95 of 100 steps "
                "keep"
            )
        if self.least_samples > MOST:
            raise InputError(f"quantile {self.quantile!r} would need {self.least_samples} samples; {MOST} are the most")
        if self.samples is not None:
            whole(self.samples, "samples (perturbed steps of each plan)", 0, MOST)
        if self.samples is not None and self.samples < self.least_samples:
            raise InputError(
                f"{self.samples} samples leave {self.samples * self._beyond:.1f} beyond the quantile {self.shown:g}; "
                f"ask for {self.least_samples} or more"
            )

    @property
    def shown(self) -> float:
        """The quantile that is reported beside the mean."""
        return SHOWN if self.quantile is None else self.quantile

    @property
    def least_samples(self) -> int:
        """Smallest number of samples of which `BEYOND` lie beyond the quantile."""
        return ceil(BEYOND / self._beyond - 1e-9)

    @property
    def wanted(self) -> int:
        """Number of samples to draw, where each is cheap."""
        return max(SAMPLES, self.least_samples) if self.samples is None else self.samples

    @property
    def statistic(self) -> str:
        """Name of the statistic: ``'mean'`` or ``'quantile 0.95'``."""
        return "mean" if self.quantile is None else f"quantile {self.quantile:g}"

    @property
    def _beyond(self) -> float:
        """Fraction of all samples on the smaller side of the quantile."""
        return min(self.shown, 1 - self.shown)


def as_robust(value: "Robust | float | str") -> Robust:
    """Convert ``Robust(…)``, ``0.05`` or ``'5%'`` to a `Robust`.

    Raises
    ------
    InputError
        If it is none of these.
    """
    return value if isinstance(value, Robust) else Robust(parse_share(value, "robust"))


def parse_share(text: str | float, name: str) -> float:
    """Parse ``'5%'`` or ``'0.05'`` to 0.05.

    Raises
    ------
    InputError
        If it is neither; the text uses ``name``.
    """
    match = _SHARE.fullmatch(written(text))
    if match is None:
        raise InputError(f"{name} {shown(text)} is not a share; write it like 5% or 0.05")
    share = float(match[1]) / (100 if match[2] else 1)
    if not match[2] and share > WIDEST:
        raise InputError(f"{name} {text} is {share:.0%}; if {share:g} per cent are meant, write {share:g}%")
    return share
