"""Series of models that are generated from a number."""

import pytest

from pipeplan.core.errors import InputError
from pipeplan.io.load import load_carried_cluster, load_model
from pipeplan.io.series import SERIES, series_model


@pytest.mark.parametrize("depth", [8, 16])
def test_members_equal_the_shipped_files(depth: int) -> None:
    """A model of a series that is also a shipped file is the same model."""
    assert SERIES["gnmt"](depth) == load_model(f"gnmt-{depth}")


def test_every_even_depth_loads_by_name() -> None:
    """Sixteen layers more are eight in the encoder and eight in the decoder, each with its parameters."""
    small, large = load_model("gnmt-32"), load_model("gnmt-48")
    assert len(large.layers) - len(small.layers) == 16
    assert len([name for name in large.names if name.startswith("encoder.")]) == 1 + 24
    grown = sum(layer.parameters for layer in large.layers) - sum(layer.parameters for layer in small.layers)
    assert grown == 8 * (8_396_800 + 12_591_104) * 4  # an encoder layer has 1,024 inputs, a decoder layer 2,048
    assert load_carried_cluster("gnmt-32") is None


def test_there_is_no_odd_depth() -> None:
    """A depth that GNMT cannot have is refused with the rule; other names are no members."""
    for name in ("gnmt-7", "gnmt-2"):
        with pytest.raises(InputError, match="even number"):
            load_model(name)
    assert series_model("gnmt") is None
    assert series_model("gpt2-small") is None
    with pytest.raises(InputError, match="no model is called 'gnmt-x'"):
        load_model("gnmt-x")
