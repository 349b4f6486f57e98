"""Checkpoints of replicas: what each of them saves of a stage, and what each restores."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeplan_executor.checkpoint.load import _model
from pipeplan_executor.checkpoint.optimizer import StoredStates
from pipeplan_executor.checkpoint.record import Group
from pipeplan_executor.checkpoint.save import _joined
from pipeplan_executor.checkpoint.slices import model_key, replica_key

MEAN = "norm.running_mean"


class Replica(SimpleNamespace):
    """A replica of a stage with one buffer."""

    def parameters(self, _: object) -> list[Any]:
        """None."""
        return []

    def buffers(self, _: object) -> list[tuple[str, Tensor]]:
        """The buffer, by name."""
        return [(MEAN, torch.zeros(3))]


@pytest.mark.parametrize("replica", range(3))
@pytest.mark.parametrize("same_plan", [False, True])
def test_statistics_are_those_of_the_first_replica_except_under_the_same_plan(replica: int, same_plan: bool) -> None:
    """There each has its own; under another plan its number says nothing of the micro-batches that it saw."""
    keys = [model_key(MEAN), replica_key(1, MEAN), replica_key(2, MEAN)]
    found = _model(SimpleNamespace(stored=keys), Replica(replica=replica), (), same_plan, Path())  # type: ignore[arg-type]
    assert [*found] == [keys[replica if same_plan else 0]]


def test_groups_have_the_parameters_of_all_shares() -> None:
    """Whoever has any of them later gets the options of its group; what two replicas have parts of is named once."""
    slow, fast = {"lr": 0.1}, {"lr": 0.5}
    shares = [
        Group(0, 1, fast, ("d",)),
        Group(0, 0, slow, ("a", "b")),
        Group(0, 1, fast, ()),
        Group(0, 0, slow, ("b", "c")),
    ]
    groups = _joined(shares)
    assert [group.names for group in groups] == [("a", "b", "c"), ("d",)]
    kept = StoredStates({}, {}, groups)
    assert [kept.options([name]) for name in "abcd"] == [slow, slow, slow, fast]
