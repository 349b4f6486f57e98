"""Batches as tensors, tuples, lists and dicts."""

from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch

from pipeplan.core.errors import InputError
from pipeplan.frontend.batch import call, mapped, samples, split, tensors


class Pair(NamedTuple):
    """A batch with names."""

    words: torch.Tensor
    mask: torch.Tensor


def test_the_order_is_that_of_the_structure() -> None:
    """Tuples give their tensors in order, mappings in the order of their keys, nested ones too."""
    a, b, c = (torch.full((4,), float(n)) for n in range(3))
    assert tensors(a) == (a,)
    nested = {"x": a, "more": [b, (c,)]}
    assert all(x is y for x, y in zip(tensors(nested), (a, b, c), strict=True))
    assert tensors(OrderedDict(z=b, a=a))[0] is b


def test_micro_batches_keep_the_structure_and_the_memory() -> None:
    """A batch of seven samples splits into sizes 3, 3 and 1, which share its memory."""
    batch = {"pair": Pair(torch.arange(7), torch.ones(7, 2)), "row": [torch.zeros(7)]}
    parts = split(batch, 3)
    assert [samples(part) for part in parts] == [3, 3, 1]
    assert isinstance(parts[1]["pair"], Pair)
    assert isinstance(parts[1]["row"], list)
    assert parts[1]["pair"].words.tolist() == [3, 4, 5]
    assert parts[2]["pair"].mask.untyped_storage().data_ptr() == batch["pair"].mask.untyped_storage().data_ptr()
    assert mapped(batch, lambda t: t.shape)["pair"] == Pair((7,), (7, 2))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"a": torch.zeros(3), "b": {"c": None}}, r"NoneType at \['b'\]\['c'\]"),
        ((torch.zeros(3), 5), r"int at \[1\]"),
        (7, "a batch holds int;"),
    ],
)
def test_what_is_no_tensor_is_named(batch: object, said: str) -> None:
    """The error names the place in the batch."""
    with pytest.raises(InputError, match=said):
        tensors(batch)


@pytest.mark.parametrize("batch", [(torch.zeros(3), torch.zeros(4)), torch.zeros(()), ()])
def test_every_tensor_counts_the_same_samples(batch: object) -> None:
    """Tensors of unequal lengths, without an axis, or none at all are refused with their shapes."""
    with pytest.raises(InputError, match="first axis of every tensor"):
        samples(batch)


def test_a_module_is_called_as_its_batch_is_built() -> None:
    """A tensor is the argument, a tuple the arguments, a mapping the keyword arguments."""

    def module(a: int, b: int = 10) -> int:
        return a - b

    assert call(module, 3) == -7
    assert call(module, (3, 1)) == call(module, [3, 1]) == 2
    assert call(module, {"b": 3, "a": 5}) == 2
