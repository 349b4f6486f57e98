"""`Choice`: the plans that were compared where times vary and the best of them, as text and as plain data."""

from dataclasses import dataclass
from itertools import pairwise

from pipeplan.core.perturbation import Robust
from pipeplan.core.units import format_time
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.simulate.perturbed.statistics import Estimate

SHOWN = 8
"""Most plans in the text; all of them are in the data."""
FEW = 8
"""Most stages of a plan whose numbers of layers are printed."""


@dataclass(frozen=True)
class ComparedPlan:
    """One plan that was compared, in nanoseconds.

    Attributes
    ----------
    evaluated : EvaluatedPlan
        ``evaluated.value`` is the nominal step.
    samples : int
        Number of perturbed steps of the plan.
    mean, quantile : Estimate
        Mean and quantile of these steps.
    behind : Estimate
        Difference of the plan's mean to that of the chosen plan, under the same perturbations.
    """

    evaluated: EvaluatedPlan
    samples: int
    mean: Estimate
    quantile: Estimate
    behind: Estimate

    @property
    def value(self) -> int:
        """The nominal step in nanoseconds."""
        return self.evaluated.value


@dataclass(frozen=True)
class Choice:
    """The compared plans and the choice among them.

    Attributes
    ----------
    question : Robust
    samples : int
        Samples of the chosen plan, and of all other finalists.
    seed : int
    compared : tuple of ComparedPlan
        Best first; the first one is chosen.
    limit : float
        Nanoseconds: plans with a longer nominal step were not compared. It is the mean or quantile of the plan with the
        fastest nominal step.
    more : int
        Number of plans within the limit that were left out, as there were too many.
    mean_bound : int or None
        Proven lower bound in nanoseconds on the mean of every plan of the searched space; None if there is none.

    Raises
    ------
    ValueError
        If there is no plan.
    """

    question: Robust
    samples: int
    seed: int
    compared: tuple[ComparedPlan, ...]
    limit: float
    more: int
    mean_bound: int | None

    def __post_init__(self) -> None:
        if not self.compared:
            raise ValueError("a robust choice compares one plan at least")

    @property
    def chosen(self) -> EvaluatedPlan:
        """The best plan."""
        return self.compared[0].evaluated

    @property
    def nominal(self) -> ComparedPlan:
        """The plan with the fastest nominal step."""
        return min(self.compared, key=lambda row: row.value)

    @property
    def reason(self) -> str:
        """The reason why another plan than the nominal best is chosen; empty if that one is."""
        other = self.chosen.value > self.nominal.value
        return f"chosen by its {self.question.statistic} where times vary" if other else ""

    def as_text(self) -> list[str]:
        """The table of plans, and the bound on means, as lines."""
        return _as_text(self)

    def as_json(self) -> dict[str, object]:
        """The object that ``pipeplan solve --json`` prints under ``robust``. Times are seconds."""
        return _as_json(self)


def _as_text(choice: Choice) -> list[str]:
    """Return the table of plans, and the bound on means, as lines."""
    question = choice.question
    lines = [
        f"chosen by the {question.statistic} of {choice.samples} steps whose times vary by {_percent(question.spread)}"
        f"{_slow(choice)}:",
        f"  {'nominal':>11}  {'mean':>20}  {f'quantile {question.shown:g}':>20}  {'behind':>17}  plan",
    ]
    lines += [f"  {_row(row, number == 0)}" for number, row in enumerate(choice.compared[:SHOWN])]
    if len(choice.compared) > SHOWN:
        lines.append(f"  and {len(choice.compared) - SHOWN} more")
    return [*lines, _reach(choice), _bound(choice)]


def _as_json(choice: Choice) -> dict[str, object]:
    """Return the object that ``pipeplan solve --json`` prints under ``robust``. Times are seconds."""
    question = choice.question
    return {
        "spread": question.spread,
        "device_spread": question.device_spread,
        "chosen_by": "mean" if question.quantile is None else "quantile",
        "quantile": question.shown,
        "samples": choice.samples,
        "seed": choice.seed,
        "compared_up_to_s": choice.limit / 1e9,
        "left_out": choice.more,
        "mean_bound_s": None if choice.mean_bound is None else choice.mean_bound / 1e9,
        "plans": [
            {
                "plan": row.evaluated.label,
                "layers": [b - a for a, b in pairwise(row.evaluated.boundaries)],
                "step_time_s": row.value / 1e9,
                "samples": row.samples,
                "mean_s": row.mean.value / 1e9,
                "mean_error_s": row.mean.error / 1e9,
                "quantile_s": row.quantile.value / 1e9,
                "quantile_error_s": row.quantile.error / 1e9,
                "behind_s": row.behind.value / 1e9,
                "behind_error_s": row.behind.error / 1e9,
            }
            for row in choice.compared
        ],
    }


def _slow(choice: Choice) -> str:
    spread = choice.question.device_spread
    return f", and devices from step to step by {_percent(spread)}" if spread else ""


def _row(row: ComparedPlan, chosen: bool) -> str:
    behind = "chosen" if chosen else f"{_with_error(row.behind, row.value)}"
    return (
        f"{format_time(row.value):>11}  {_with_error(row.mean, row.value):>20}  "
        f"{_with_error(row.quantile, row.value):>20}  {behind:>17}  {_plan(row)}"
    )


def _with_error(estimate: Estimate, nominal: int) -> str:
    """A time, and its standard error as a share of the nominal step."""
    share = estimate.error / nominal if nominal else 0.0
    return f"{format_time(estimate.value)} ± {share:.2%}"


def _plan(row: ComparedPlan) -> str:
    layers = [b - a for a, b in pairwise(row.evaluated.boundaries)]
    layers_text = f", layers {'-'.join(map(str, layers))}" if 1 < len(layers) <= FEW else ""
    return f"{row.evaluated.label}{layers_text}"


def _reach(choice: Choice) -> str:
    count = len(choice.compared)
    some = f", the fastest {count} of {count + choice.more}" if choice.more else ""
    return f"  compared: plans found with nominal steps of at most {format_time(choice.limit)}{some}"


def _bound(choice: Choice) -> str:
    if choice.mean_bound is None:
        return (
            "  no bound on means is proved: network cards are shared, and the order of transfers depends on the times"
        )
    return f"  no plan of the searched space takes less than {format_time(choice.mean_bound)} on average"


def _percent(share: float) -> str:
    return f"{100 * share:g}%"
