"""The examples of public names, as doctests."""

import doctest

import pytest

import pipeplan
import pipeplan_executor

NAMES = [(package, name) for package in (pipeplan, pipeplan_executor) for name in package.__all__ if name[0] != "_"]
LONG = {
    *("judge", "Judgement", "remedies", "fewest_devices", "shard", "Sharded", "profile", "profile_workload"),
    *("explain", "Explanation", "frontier", "Frontier"),
}
"""Names whose examples take longer than a tenth of a second."""


@pytest.mark.parametrize(
    ("package", "name"),
    [pytest.param(*each, marks=pytest.mark.slow if each[1] in LONG else (), id=each[1]) for each in NAMES],
)
def test_examples_print_what_they_show(package: object, name: str) -> None:
    """Every public name has an example, and it runs with `pipeplan` and `pipeplan_executor` imported."""
    thing = getattr(package, name)
    names = {"pipeplan": pipeplan, "pipeplan_executor": pipeplan_executor}
    [found] = doctest.DocTestFinder(recurse=False).find(thing, name, globs=names) or [None]
    assert found is not None
    assert found.examples
    options = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    assert not doctest.DocTestRunner(verbose=False, optionflags=options).run(found).failed
