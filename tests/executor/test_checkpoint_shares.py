"""Checkpoints of replicas: what each of them saves of a stage, and what each restores."""

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeplan_executor.checkpoint.inventory import Entry
from pipeplan_executor.checkpoint.load import _model
from pipeplan_executor.checkpoint.optimizer import Part, StoredStates, options_of, put, take
from pipeplan_executor.checkpoint.plain import _optimizer
from pipeplan_executor.checkpoint.record import Group, Record
from pipeplan_executor.checkpoint.save import _joined
from pipeplan_executor.checkpoint.slices import Slice, model_key, replica_key

MEAN = "norm.running_mean"
ADAM = ("step", "exp_avg", "exp_avg_sq")


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


def grouped(random: Random, named: dict[str, nn.Parameter]) -> torch.optim.Adam:
    """An optimiser whose parameters are in one to three groups of drawn options."""
    groups: dict[int, list[nn.Parameter]] = {}
    for parameter in named.values():
        groups.setdefault(random.randrange(3), []).append(parameter)
    return torch.optim.Adam(
        [{"params": own, "lr": random.random(), "weight_decay": random.random()} for own in groups.values()]
    )


@pytest.mark.parametrize("seed", range(6))
def test_states_and_options_go_back_to_their_parameters(seed: int) -> None:
    """Of parameters in drawn groups, whose names no alphabet orders: into torch's own optimiser, and into ours."""
    names = [f"{letter}.w" for letter in Random(seed).sample("abcdefg", 7)]
    named = {name: nn.Parameter(torch.randn(2)) for name in names}
    old, new, plain = (grouped(Random(seed), named) for _ in range(3))
    for parameter in named.values():
        parameter.grad = torch.randn(2)
    old.step()
    for optimizer in (new, plain):
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = 0.0, 0.0
    parts = [Part(name, parameter, (), (2,)) for name, parameter in named.items()]
    taken = take(old, parts, 0)
    tensors = {key: value.values if isinstance(value, Slice) else value for key, value in taken.tensors.items()}
    # to plain torch
    inventory = tuple(Entry(name, (2,), True, name) for name in names)
    plain.load_state_dict(_optimizer(Record(1, 0, "m", inventory, [], "Adam", taken.groups, taken.values), tensors))
    # to an optimiser of a continued run
    states = {name: {key.split("/")[2]: tensors[key] for key in tensors if f"/{name}/" in key} for name in names}
    put(new, parts, states, StoredStates({}, taken.values, taken.groups))
    for optimizer in (new, plain):
        assert [options_of(group) for group in optimizer.param_groups] == [*map(options_of, old.param_groups)]
        for parameter in named.values():
            assert optimizer.state[parameter].keys() == old.state[parameter].keys()
            assert all(torch.equal(optimizer.state[parameter][key], old.state[parameter][key]) for key in ADAM)
