"""What few micro-batches take, told to the windows of many.

Take any schedule of M micro-batches and keep of it only the last n. What is left is a schedule of n: no operation waits
for one that is gone, and no more is held than before. It begins with F_0(M − n), so that from there to the end of the
step it takes at least as long as a shortest step of n. Keep only the first n, and stage 0's last operation on them ends
no earlier than it can in a schedule of n.

::

    F_0(0) ……… W_0(n − 1) ……… F_0(M − n) ……… end
    ╰─── first[n] ──────╯     ╰── step[n] ──╯
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spans:
    """Lower bounds by number n of micro-batches; none need be there.

    Attributes
    ----------
    step : mapping
        Of a step of n, endings included.
    first : mapping
        Of the time from the start of a step to the end of the last operation of stage 0 on the first n: of W_0(n − 1),
        or of I_0(n − 1) where the backward of stage 0 is joined.
    """

    step: Mapping[int, int] = field(default_factory=dict)
    first: Mapping[int, int] = field(default_factory=dict)
