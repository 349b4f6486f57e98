"""Output channels of layers, derived from parameter and operation counts."""

from pipeplan import load_model
from pipeplan.fpga.shares import MANY, channels


def test_channels_of_vgg() -> None:
    """Every convolution and linear layer has its channels; pooling has none."""
    model = load_model("vgg-16")
    found = dict(zip(model.names, channels(model), strict=True))
    assert [found[name] for name in ("conv1_1", "conv2_2", "conv3_1", "conv5_3")] == [64, 128, 256, 512]
    assert [found[name] for name in ("fc6", "fc7", "fc8")] == [4096, 4096, 1000]
    assert found["pool3"] == MANY


def test_a_block_of_layers_has_no_channels() -> None:
    """Counts of several convolutions together match no single one."""
    assert set(channels(load_model("resnet-50"))[:-1]) == {MANY}
