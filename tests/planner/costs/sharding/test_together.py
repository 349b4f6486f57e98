"""Combinations of the ways of unlike layers, compared with all of them."""

from itertools import product
from random import Random

import numpy as np
import pytest

from pipeplan.costs.sharding.together import MOST, Together


def drawn(random: Random, most: int) -> Together:
    """Three sorts of layers; the first two share weights, which main strategies split in one of two ways."""
    choices = {
        name: {
            ((str(k), ()),): np.array([random.randint(0, 9) for _ in range(3)]) for k in range(random.randint(1, most))
        }
        for name in "abc"
    }

    def cuts(name: str, main: tuple) -> tuple:
        return ((int(main[0][0]) % 2,),) if name != "c" else ()

    def agrees(known: dict[str, tuple]) -> bool:
        return known.get("a", ()) == known.get("b", known.get("a", ()))

    return Together(choices, cuts, agrees, [slice(0, None, 3), slice(2, None, 3)], lambda: None)


def sums(question: Together, row: dict) -> np.ndarray:
    """The figures of all layers."""
    return sum(question.choices[name][main] for name, main in row.items())


@pytest.mark.parametrize("seed", range(40))
def test_no_combination_is_better_than_all_that_are_returned(seed: int) -> None:
    """Of few ones each that agrees is no better than a returned one, and no returned one dominates another."""
    question = drawn(Random(f"few {seed}"), 3)
    every = [dict(zip("abc", row, strict=True)) for row in product(*question.choices.values())]
    every = [row for row in every if question.agrees({name: question.cuts(name, row[name]) for name in row})]
    some = [sums(question, row) for row in question.rows()]
    assert all(any((one <= sums(question, row)).all() for one in some) for row in every)
    assert all(row in every for row in question.rows())
    assert not any((one <= other).all() for k, one in enumerate(some) for j, other in enumerate(some) if k != j)


@pytest.mark.parametrize("seed", range(10))
def test_of_many_combinations_the_least_of_each_number_stay(seed: int) -> None:
    """There are no more than may be searched, and among them those with the least of a preferred number."""
    question = drawn(Random(f"many {seed}"), 12)
    some = np.array([sums(question, row) for row in question.rows()])
    every = [dict(zip("abc", row, strict=True)) for row in product(*question.choices.values())]
    every = [row for row in every if question.agrees({name: question.cuts(name, row[name]) for name in row})]
    assert 0 < len(some) <= MOST
    least = np.array([sums(question, row) for row in every]).min(0)
    assert some.min(0)[[0, 2]].tolist() == least[[0, 2]].tolist()


def thinned(rows: list[np.ndarray], preferred: list[slice]) -> list[int]:
    """Numbers of the rows that stay by the page: no number less than a kept one's by more than ever larger parts."""
    least, numbers = np.array(rows).min(0), [*range(len(rows))]
    for parts in (None, 4096, 1024, 256, 64, 16, 4):
        slack = 0 * least if parts is None else least / parts
        by_time = sorted(numbers, key=lambda k: (rows[k][preferred[0]].sum(), rows[k].sum()))
        first = [min(by_time, key=lambda k: rows[k][each].sum()) for each in preferred]
        kept: list[int] = []
        for k in dict.fromkeys([*first, *by_time]):
            if not any((rows[other] <= rows[k] + slack).all() for other in kept):
                kept.append(k)
        numbers = kept
        if len(kept) <= MOST:
            break
    return numbers[:MOST]


@pytest.mark.parametrize("seed", range(12))
def test_of_many_those_that_differ_little_are_left_out(seed: int) -> None:
    """By growing parts of the least figure, until few enough stay: which, a plain loop says."""
    random = Random(f"thin {seed}")
    figures = [np.array([float(random.randint(500, 520 + 40 * seed)) for _ in range(3)]) for _ in range(150)]
    mains = {((str(k), ()),): row for k, row in enumerate(figures)}
    preferred = [slice(0, None, 3), slice(2, None, 3)]
    question = Together({"a": mains}, lambda *_: (), lambda _: True, preferred, lambda: None)
    found = sorted(int(row["a"][0][0]) for row in question.rows())
    assert found == sorted(thinned(figures, preferred))
