"""Slices of TeraPipe's published runs: a fitted time of a slice, and the times of runs that the fit has not seen.

A slice of l tokens behind j others takes a + b · max(l, l0) + c · l · (j + l / 2) seconds on a stage, forward and
backward together: a launch, work of at least l0 tokens, and what attention reads. D sequences over K equal stages take
D · Σ t + (K − 1) · max t (`pipeplan_formulations.slicing`). Constants are those of least relative squares; none is
negative.

Seconds of a step as published (Li et al., ICML 2021, arXiv 2102.07988: the table of uniform slices, its text on the
programme's slices, and its longer sequences); stages and sequences are those of the released inputs. 175B:
fitted to uniform slices, asked for the published unlike ones. 13B: fitted to whole sequences of four lengths, asked for
the slices of each, which are not published: the best ones in steps of 16 tokens stand for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.slicing import Slicing, solve

Run = tuple[int, tuple[int, ...], float]
"""Sequences, the tokens of each slice of one, and the seconds of a step."""

STAGES_175B, UNLIKE = 96, (120,) * 4 + (112,) * 6 + (104,) * 8 + (64,)
UNIFORM = {1: 9.990, 4: 2.902, 8: 1.892, 16: 1.547, 32: 1.593, 64: 2.227, 128: 3.252}
PUBLISHED = 1.481
STAGES_13B = 40
WHOLE = {2048: (32, 1.863), 4096: (8, 2.526), 6144: (4, 3.754), 8192: (2, 4.978)}
SLICED = {2048: 1.328, 4096: 0.913, 6144: 0.756, 8192: 0.636}
LEAST_TOKENS = 256
"""Up to here l0 is tried, token by token."""


@dataclass(frozen=True)
class SliceTime:
    """The constants of a slice's time: l0, and a, b, c in seconds."""

    least: int
    constants: NDArray[np.float64]

    def times(self, length: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the seconds of slices of so many tokens behind so many others."""
        return _terms(self.least, length, before) @ self.constants

    def step(self, stages: int, sequences: int, slices: Sequence[int]) -> float:
        """Return the seconds of a step."""
        length = np.array(slices)
        times = self.times(length, np.cumsum(length) - length)
        return float(sequences * times.sum() + (stages - 1) * times.max())

    def best(self, stages: int, sequences: int, tokens: int, unit: int) -> tuple[float, tuple[int, ...]]:
        """Return the seconds of the best slices in steps of ``unit`` tokens, and the slices."""
        ends = np.arange(tokens // unit + 1) * unit
        length = np.maximum(ends[:, None] - ends[None, :], 0)
        times = np.rint(self.times(length, np.broadcast_to(ends, length.shape)) * 1e9).astype(np.int64)
        report = solve(Slicing(times, stages, sequences), Limits())
        assert report.solution is not None
        slices = tuple(int(tokens) for tokens in np.diff(ends[list(report.solution)]))
        return self.step(stages, sequences, slices), slices


def _terms(least: int, length: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.stack([np.ones(length.shape), np.maximum(length, least), length * (before + length / 2)], axis=-1)


def fitted(stages: int, runs: Sequence[Run]) -> SliceTime:
    """Return the constants that fit runs best; in each run the last of equal slices, which reads most, is longest."""
    tried = []
    for least in range(1, LEAST_TOKENS + 1):
        rows = []
        for sequences, slices, seconds in runs:
            length = np.array(slices)
            terms = _terms(least, length, np.cumsum(length) - length)
            rows.append((sequences * terms.sum(axis=0) + (stages - 1) * terms[-1]) / seconds)
        error, constants = _not_negative(np.array(rows))
        tried.append((error, least, constants))
    _, least, constants = min(tried, key=lambda each: each[:2])
    return SliceTime(least, constants)


def _not_negative(rows: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Least squares of ``rows · x = 1`` for x of at least 0: the sum, and x."""
    found, ones = [], np.ones(len(rows))
    for count in range(1, rows.shape[1] + 1):
        for columns in combinations(range(rows.shape[1]), count):
            x = np.zeros(rows.shape[1])
            x[list(columns)] = np.linalg.lstsq(rows[:, columns], ones, rcond=None)[0]
            if x.min() >= 0:
                found.append((float(((rows @ x - 1) ** 2).sum()), x))
    return min(found, key=lambda each: each[0])


def uniform(count: int) -> tuple[int, ...]:
    """Return the slices of 2,048 tokens."""
    return (2048 // count,) * count


def of_175b() -> SliceTime:
    """Return the time of a slice of the model with 175 billion parameters."""
    return fitted(STAGES_175B, [(2, uniform(count), seconds) for count, seconds in UNIFORM.items()])


def of_13b() -> SliceTime:
    """Return the time of a slice of the model with 13 billion parameters."""
    return fitted(STAGES_13B, [(many, (tokens,), seconds) for tokens, (many, seconds) in WHOLE.items()])


def main() -> None:
    """Print published and predicted seconds of a step."""
    large, small = of_175b(), of_13b()
    for name, fit in (("175B", large), ("13B", small)):
        a, b, c = fit.constants
        print(f"{name}: a = {a * 1e3:.3g} ms, b = {b * 1e6:.3g} us a token, c = {c * 1e9:.3g} ns, l0 = {fit.least}")
    print(f"{'model, tokens':16}{'slices':>26}{'published':>11}{'predicted':>11}{'ratio':>7}")
    rows = [("175B, 2048", f"{n} equal", s, large.step(STAGES_175B, 2, uniform(n))) for n, s in UNIFORM.items()]
    rows.append(("175B, 2048", f"{len(UNLIKE)} published", PUBLISHED, large.step(STAGES_175B, 2, UNLIKE)))
    own, slices = large.best(STAGES_175B, 2, 2048, 8)
    rows.append(("175B, 2048", f"{len(slices)} of {min(slices)}-{max(slices)}, ours", PUBLISHED, own))
    for tokens, (many, seconds) in WHOLE.items():
        own, slices = small.best(STAGES_13B, many, tokens, 16)
        rows.append((f"13B, {tokens}", "whole", seconds, small.step(STAGES_13B, many, (tokens,))))
        rows.append((f"13B, {tokens}", f"{len(slices)} of {min(slices)}-{max(slices)}, ours", SLICED[tokens], own))
    for name, cut, published, predicted in rows:
        print(f"{name:16}{cut:>26}{published:>11.3f}{predicted:>11.3f}{predicted / published:>7.2f}")


if __name__ == "__main__":
    main()
