"""Capture of a torch model as a sequence of layers, to be profiled, cut and run. Torch is loaded when used.

::

    nn.Sequential and its like ──chain──╮
    any module ──────torch.export──graph──┼──▶ Row: layer0 ─▶ layer1 ─▶ …     tensors pass from each to the next
    the user's own stages ──────as is───╯
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeplan.frontend.capture.front_ends import FrontEnd, row_of
    from pipeplan.frontend.capture.row import Row, Stages


def __getattr__(name: str) -> Any:
    if name in ("FrontEnd", "row_of"):
        from pipeplan.frontend.capture import front_ends

        return getattr(front_ends, name)
    if name in ("Row", "Stages"):
        from pipeplan.frontend.capture import row

        return getattr(row, name)
    raise AttributeError(name)


__all__ = ["FrontEnd", "Row", "Stages", "row_of"]
