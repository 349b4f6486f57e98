"""The data of a chain partition problem: tables of layers on stages, links, counts, and sums along the layers.

The equations are in `pipeplan_formulations.partition.instance`, which gives each letter its meaning.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.exposed import Collectives, Exposed
from pipeplan_formulations.common.layer_tables import LEFT_OUT, Array, Flags, sums_before
from pipeplan_formulations.common.objective import Objective, endless
from pipeplan_formulations.common.pass_times import PassTables, Role
from pipeplan_formulations.common.recomputation import shared_recomputation
from pipeplan_formulations.common.span_options import SpanOptions
from pipeplan_formulations.partition.parts import LinkResource, PathCut, Tie
from pipeplan_formulations.partition.terms import Counts, Overlap

Boundaries = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PartitionTables(PassTables):
    """Layers on the devices of S stages; `SHAPES` has the shape of each array.

    Attributes
    ----------
    send, latency : array of int
        f and l of each link; if its resources differ, those of the fastest.
    send_back, link : array of int
        g and c of each cut on each link.
    received : array of int
        Bytes r of each cut, on each link.
    in_flight : array of int
        k_s.
    micro_batches : int
        M ≥ 1.
    overlap : 'none', 'copy' or 'stream'
    objective : 'step', 'period', 'bottleneck' or 'delayed'
    paths : tuple of PathCut
        Path cuts; not with objectives 'bottleneck' and 'delayed'.
    resources : tuple of LinkResource
        Link resources with bounds of their own; not with objectives 'bottleneck' and 'delayed'.
    counts : array of int, optional
        M_s; by default M.
    link_counts : array of int, optional
        m_s. By default a lower bound from M_s and M_{s+1}: the smaller if a neighbour has one replica, else 1.
    alternating : bool
        True if the warm-up bound holds.
    warm_up : array of int, optional
        k_s of the warm-up bound, if it may exceed that of the memory limit: the most forwards of a replica before its
        first backward.
    slower_pairs : array of int, optional
        σ_s of the warm-up bound: what the transfers of its two micro-batches take longer than over the fastest pairs of
        replicas; by default 0.
    samples : int, optional
        N of the loads; by default M.
    weight : array of int, optional
        V of each layer, if backwards are split; only with objective 'step' and without paths.
    ahead_weight, service_weight : array of int, optional
        V_0 behind the last backward of stage 0, and the V_s of the warm-up: at most ``weight``, the default.
    ties : tuple of Tie
    beside : array of int, optional
        Bytes that a second lane needs for each layer, in Y_s; by default there is none.
    cuts : array of bool, optional
        Allowed cuts; by default all.
    where : array of bool, optional
        True where a layer may lie on a stage; by default everywhere.
    """

    # Axes: S stages, L = S − 1 links, n layers, c = n − 1 cuts.
    SHAPES: ClassVar = {
        **dict.fromkeys(("forward", "backward", "weight", "update", "where"), ("Sn",)),
        **dict.fromkeys(("ahead_forward", "ahead_backward", "ahead_weight"), ("Sn",)),
        **dict.fromkeys(("service_forward", "service_backward", "service_weight"), ("Sn",)),
        **dict.fromkeys(("late_forward", "late_backward"), ("Sn",)),
        **dict.fromkeys(("reduce", "hides", "gather", "gather_hides"), ("Sn",)),
        **dict.fromkeys(("send", "send_back", "link"), ("Lc",)),
        "recomputable": ("n",),
        "cuts": ("c",),
        **dict.fromkeys(("in_flight", "limit", "counts", "warm_up", "slower_pairs"), ("S",)),
        **dict.fromkeys(("reduce_base", "gather_base"), ("S",)),
        **dict.fromkeys(("latency", "link_counts"), ("L",)),
        "received": ("c", "Lc"),
        **dict.fromkeys(("resident", "saved", "workspace", "rebuilt", "output", "beside"), ("n", "Sn")),
    }

    send_back: Array = LEFT_OUT
    link: Array = LEFT_OUT
    received: Array = LEFT_OUT
    in_flight: Array
    micro_batches: int
    overlap: Overlap = "copy"
    objective: Objective = "step"
    paths: tuple[PathCut, ...] = ()
    resources: tuple[LinkResource, ...] = ()
    counts: Array | None = None
    link_counts: Array | None = None
    alternating: bool = False
    warm_up: Array | None = None
    slower_pairs: Array | None = None
    samples: int | None = None
    weight: Array | None = None
    ahead_weight: Array | None = None
    service_weight: Array | None = None
    ties: tuple[Tie, ...] = ()
    beside: Array | None = None
    cuts: Flags | None = None
    where: Flags | None = None

    def __post_init__(self) -> None:
        if self.forward.ndim != 2:
            raise ValueError(f"forward has shape {self.forward.shape}, expected (stages, layers)")
        stages, layers = self.forward.shape
        if not 1 <= stages <= layers:
            raise ValueError(f"{layers} layers do not fill {stages} stages")
        axes = {"S": stages, "L": stages - 1, "n": layers, "c": layers - 1}
        self.check_shapes(axes)
        self.fill(axes)

    @property
    def stages(self) -> int:
        """S."""
        return int(self.forward.shape[0])

    @property
    def endless(self) -> bool:
        """True if T is the largest load."""
        return endless(self.objective)

    @property
    def divisor(self) -> int:
        """N; a batch counts as one."""
        return 1 if self.objective == "delayed" else self.samples or self.micro_batches

    @property
    def ends_together(self) -> bool:
        """True if the first and the last stage sum the gradients of the same weights, wherever the cuts lie."""
        ends = 0, self.layers - 1
        joined = any(tie.reduce[-1] and (tie.layers[0], tie.layers[-1]) == ends for tie in self.ties)
        return self.objective == "step" and self.stages > 1 and joined

    @cached_property
    def prefix(self) -> dict[str, Array]:
        """As in `LayerTables`, and of ``weight``, all of shape (S, n + 1)."""
        tables = {
            **{name: getattr(self, name) for name in ("forward", "backward", "update")},
            "weight": np.zeros_like(self.forward) if self.weight is None else self.weight,
            "resident": np.broadcast_to(self.resident, self.forward.shape),
            "saved": self.bytes.saved,
        }
        return {name: sums_before(table) for name, table in tables.items()}

    @property
    def has_roles(self) -> bool:
        """True if some role has tables of its own."""
        return bool(self.apart or self._weights)

    @cached_property
    def _weights(self) -> dict[Role, Array]:
        """Sums of V before each boundary, for the roles that have a table of their own."""
        tables: dict[Role, Array | None] = {"ahead": self.ahead_weight, "service": self.service_weight}
        return {role: sums_before(table) for role, table in tables.items() if table is not None}

    def weight_of(self, role: Role, own: Array, row: Array | int, starts: Array, ends: Array) -> Array:
        """V of spans in a role: ``own``, unless the role has a table of its own; see `PassTables.times`."""
        sums = self._weights.get(role)
        return own if sums is None else sums[row, ends] - sums[row, starts]

    @cached_property
    def collectives(self) -> Collectives:
        """R_s without ties, of any span of stage s."""
        sums = Exposed(self.reduce, self.hides, self.reduce_base)
        gathers = Exposed(self.gather, self.gather_hides, self.gather_base)
        return Collectives(sums, gathers, everywhere=self.objective in ("period", "delayed"))

    @cached_property
    def through(self) -> tuple[Counts, ...]:
        """Micro-batch counts of each stage: M_s, late forwards of the warm-up bound, m_s and m_{s−1}."""
        most = [self.micro_batches] * self.stages if self.counts is None else self.counts.tolist()
        single = [count == self.micro_batches for count in most]
        counts = [min(most[s], most[s + 1]) if single[s] or single[s + 1] else 1 for s in range(self.stages - 1)]
        counts = [1, *(counts if self.link_counts is None else self.link_counts.tolist()), 1]
        in_flight = np.maximum(self.in_flight if self.warm_up is None else self.warm_up, 1).tolist()
        late = [max(m - k, 0) if self.alternating else 0 for m, k in zip(most, in_flight, strict=True)]
        slower = [0] * self.stages
        if self.alternating and self.slower_pairs is not None:
            slower = self.slower_pairs.tolist()
        return tuple(Counts(most[s], late[s], counts[s + 1], counts[s], slower[s]) for s in range(self.stages))

    def options(self, s: int) -> SpanOptions:
        """Recomputation options of stage s."""
        b = self.bytes
        return shared_recomputation(self.forward[s], b.savings[s], b.workspace[s], b.again[s], b.useful[s])

    @cached_property
    def bytes(self) -> "StageBytes":
        """Bytes of each layer on each stage's device."""
        return StageBytes.of(self)


@dataclass(frozen=True)
class StageBytes:
    """Bytes of each layer on each stage, arrays of shape (S, n); stages with equal rows are of one sort.

    Attributes
    ----------
    saved, output : array of int
        Held per micro-batch in flight, by a layer that saves everything and by a recomputed one.
    workspace, again, beside : array of int
        Needed while a layer computes: not recomputed, recomputed, and by a second lane.
    useful : array of bool
        Layers that may be recomputed and hold less then.
    received : array of int
        Held per micro-batch in flight by a stage that begins with the layer.
    sort : array of int, shape (S,)
        Number of the first stage with the same rows.
    """

    saved: Array
    output: Array
    workspace: Array
    again: Array
    beside: Array
    useful: Flags
    received: Array
    sort: NDArray[np.intp]

    @staticmethod
    def of(problem: PartitionTables) -> "StageBytes":
        """The arrays of a problem, whose tables may have one row for all stages."""
        shape = problem.forward.shape
        beside = 0 if problem.beside is None else problem.beside
        given = (problem.saved, problem.output, problem.workspace, problem.again, beside)
        saved, output, workspace, again, beside = tables = [np.broadcast_to(table, shape) for table in given]
        received = np.zeros(shape, np.int64)
        received[1:, 1:] = problem.received
        sort = np.zeros(problem.stages, np.intp)
        if any(np.ndim(table) == 2 for table in given):
            first: dict[bytes, int] = {}
            rows = np.concatenate(tables, axis=1)
            sort = np.array([first.setdefault(row.tobytes(), s) for s, row in enumerate(rows)], np.intp)
        return StageBytes(
            saved=saved,
            output=output,
            workspace=workspace,
            again=again,
            beside=beside,
            useful=np.broadcast_to(problem.useful, shape),
            received=received,
            sort=sort,
        )

    @property
    def savings(self) -> Array:
        """Bytes per micro-batch in flight that recomputation of a layer saves."""
        less: Array = self.saved - self.output
        return less
