"""Capture of a torch model as a sequence of layers, to be profiled, cut and run. Torch is loaded when used.

::

    nn.Sequential and its like ──chain──╮
    any module ──────torch.export──graph──┼──▶ LayerSequence: layer0 ─▶ layer1 ─▶ …   tensors pass from each to the next
    the user's own stages ──────as is───╯
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeplan.frontend.capture.front_ends import FrontEnd, capture_layers
    from pipeplan.frontend.capture.layer_sequence import LayerSequence, Stages


def __getattr__(name: str) -> Any:
    if name in ("FrontEnd", "capture_layers"):
        from pipeplan.frontend.capture import front_ends

        return getattr(front_ends, name)
    if name in ("LayerSequence", "Stages"):
        from pipeplan.frontend.capture import layer_sequence

        return getattr(layer_sequence, name)
    raise AttributeError(name)


__all__ = ["FrontEnd", "LayerSequence", "Stages", "capture_layers"]
