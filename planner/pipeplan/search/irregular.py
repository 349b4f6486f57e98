"""What the wish for regular plans costs, beside the best plan without it."""

from dataclasses import dataclass

from pipeplan.core.units import format_time

SHOWN = 5e-5
"""A cost that differs from nothing in two decimals of a percent."""


@dataclass(frozen=True, slots=True)
class Irregular:
    """The best plan found if plans need not be regular, and the bound on all of these; nanoseconds.

    Without a plan, ``value`` is that of the regular one; without a bound, ``bound`` is 0.
    """

    value: int
    bound: int

    def cost(self, value: int, bound: int) -> tuple[float, float | None]:
        """Return by which share the best regular plan is slower, at least and at most; no most without a bound.

        ``value``, ``bound``: of regular plans, each of which is a plan without the wish too.
        """
        least = max(bound / min(self.value, value) - 1, 0.0) if value else 0.0
        return least, max(value / self.bound - 1, 0.0) if self.bound else None

    def line(self, value: int, bound: int) -> str:
        """Return in words what regularity costs."""
        least, most = self.cost(value, bound)
        if most is not None and most - least < SHOWN:
            how = f"costs {most:.2%}, proved" if most >= SHOWN else "costs nothing, proved"
        elif most is None and least < SHOWN:
            return "regular: what it costs is not known (no time was left for plans that need not be)"
        else:
            how = f"costs {least:.2%} at least" + (f" and {most:.2%} at most" if most is not None else "")
        without = (
            f"without --regular {format_time(min(self.value, value))}, bound {format_time(min(self.bound, bound))}"
        )
        return f"regular: {how} ({without})"

    def as_json(self, value: int, bound: int) -> dict[str, float | None]:
        """Return the figures; times in seconds, shares."""
        least, most = self.cost(value, bound)
        return {
            "time_s": min(self.value, value) / 1e9,
            "bound_s": min(self.bound, bound) / 1e9,
            "costs_at_least": least,
            "costs_at_most": most,
        }
