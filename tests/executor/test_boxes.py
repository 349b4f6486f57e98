"""Numbers of a tensor that follow one another, as boxes, and their places in a larger one."""

from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_executor.checkpoint.slices import Slice, boxes_of, pieces_of


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
@settings(max_examples=200, deadline=None)
def test_boxes_hold_the_numbers_in_order(shape: list[int], data: st.DataObject) -> None:
    """Boxes, one after the other, hold exactly the numbers of a range, in order."""
    first = data.draw(st.integers(0, prod(shape)))
    end = data.draw(st.integers(first, prod(shape)))
    whole = torch.arange(prod(shape)).reshape(shape)
    boxes = boxes_of(shape, first, end)
    found = torch.cat([torch.empty(0, dtype=torch.int64), *(box.of(whole).reshape(-1) for box in boxes)])
    assert found.tolist() == list(range(first, end))
    assert all(box.numbers for box in boxes)
    assert len(boxes) <= max(2 * len(shape) - 1, 1)


RANGES = st.lists(st.sampled_from([(0, 2), (3, 5), (5, 6), (8, 9)]), min_size=1, max_size=4, unique=True).map(sorted)
"""Ranges of an axis of ten."""


@given(st.lists(RANGES, min_size=1, max_size=3), st.data())
@settings(max_examples=200, deadline=None)
def test_pieces_hold_the_numbers_where_they_are_in_the_whole(
    ranges: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """A slice has each of its numbers in one piece, whose box is the place of these numbers in the whole."""
    whole = torch.arange(10 ** len(ranges)).reshape([10] * len(ranges))
    part = whole
    for axis, own in enumerate(ranges):
        part = torch.cat([part.narrow(axis, first, end - first) for first, end in own], axis)
    first = data.draw(st.integers(0, part.numel()))
    end = data.draw(st.integers(first, part.numel()))
    own = part.reshape(-1)[first:end]
    found = Slice(own, pieces_of(boxes_of(part.shape, first, end), ranges), tuple(whole.shape))
    for box, values in found.parts():
        assert torch.equal(values, box.of(whole))
        assert torch.equal(found.at(box.offsets), values)
    assert sorted(n for _, values in found.parts() for n in values.reshape(-1).tolist()) == sorted(own.tolist())
