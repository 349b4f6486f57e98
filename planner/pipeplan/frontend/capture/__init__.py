"""Turns a torch model into a row of layers, the one thing that is profiled, cut and run. Torch is loaded when used.

::

    nn.Sequential and its like ──chain──╮
    any module ──────torch.export──graph──┼──▶ Row: layer0 ─▶ layer1 ─▶ …     tensors pass from each to the next
    the user's own stages ──────as is───╯
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeplan.frontend.capture.row import FrontEnd, Row, row_of
    from pipeplan.frontend.capture.stages import Stages


def __getattr__(name: str) -> Any:
    if name in ("FrontEnd", "Row", "row_of"):
        from pipeplan.frontend.capture import row

        return getattr(row, name)
    if name == "Stages":
        from pipeplan.frontend.capture.stages import Stages

        return Stages
    raise AttributeError(name)


__all__ = ["FrontEnd", "Row", "Stages", "row_of"]
