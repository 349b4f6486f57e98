"""Numbers of a tensor that follow one another, as boxes."""

from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_executor.checkpoint.slices import boxes_of


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
@settings(max_examples=200, deadline=None)
def test_boxes_hold_the_numbers_in_order(shape: list[int], data: st.DataObject) -> None:
    """Boxes, one after the other, hold exactly the numbers of a range, in order; a corner shifts them."""
    first = data.draw(st.integers(0, prod(shape)))
    end = data.draw(st.integers(first, prod(shape)))
    corner = data.draw(st.lists(st.integers(0, 2), min_size=len(shape), max_size=len(shape)))
    whole = torch.arange(prod(shape)).reshape(shape)
    boxes = boxes_of(shape, first, end)
    found = torch.cat([torch.empty(0, dtype=torch.int64), *(box.of(whole).reshape(-1) for box in boxes)])
    assert found.tolist() == list(range(first, end))
    assert all(box.numbers for box in boxes)
    assert len(boxes) <= max(2 * len(shape) - 1, 1)
    shifted = boxes_of(shape, first, end, corner)
    assert [box.sizes for box in shifted] == [box.sizes for box in boxes]
    for box, moved in zip(boxes, shifted, strict=True):
        assert moved.offsets == tuple(a + b for a, b in zip(box.offsets, corner, strict=True))
