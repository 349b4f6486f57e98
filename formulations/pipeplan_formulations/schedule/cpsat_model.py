"""CP-SAT model of pipeline scheduling: intervals, and literals that count the bytes held.

Every operation A, and every transfer, has a start between its head and T − time − tail (`windows`), with T the
incumbent's value.

(a)  `_order`: inputs, transfers, and the order 0, 1, 2, … of the operations of one kind and stage.
(b)  `_devices`: no two intervals of one lane overlap, nor two of one link resource. A device that waits for its tensors
     is occupied until they have been sent.
(c)  `_memory`: for a forward X of a device whose limit can bind, and each other operation Y of the device, x_{Y,X} is
     1 if Y ends before X starts; otherwise X ends before Y starts. Bytes held once X has started:

         taken of X + Σ_F x taken − Σ_I x freed − Σ_W x freed_by_weight ≤ room.

     With two lanes, x = 0 does not order an I or W after X; it only frees nothing for X. Many x are constants: by the
     chain of a micro-batch, or because two windows exclude the other order.
(d)  `_staircases`: if Y_{i+1} ends before X, so does Y_i; if Y ends before X_j, then before X_{j+1}; if W_i does, so
     does I_i.
(e)  `_admissions`: by memory alone (`Admission`) F(i) starts after the end of I(i − K), and of the W that i needs.
(f)  `_order`: the objective is at least the end of the last operation of each kind at each stage, and its ending.

(d) and (e) follow from the others and are added for propagation.
"""

from typing import Any

from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver
from pipeplan_formulations.schedule.bounds import Windows
from pipeplan_formulations.schedule.instance import Op, PipelineSchedule
from pipeplan_formulations.schedule.objective import Starts
from pipeplan_formulations.schedule.precedence import Admission, precedes

SUBSOLVERS = {True: ("objective_lb_search", "quick_restart"), False: ("no_lp", "quick_restart_no_lp")}
"""Subsolvers of several threads besides local search, with linear programmes and without. With narrow windows linear
programmes prove little and cost half of the time; without any other bound they raise it soonest."""


def binds(problem: PipelineSchedule, device: int) -> bool:
    """True if a device cannot hold all micro-batches at once."""
    return problem.micro_batches * sum(problem.taken[s] for s in problem.hosted[device]) > problem.room[device]


def pairs(problem: PipelineSchedule) -> int:
    """Number of pairs of a forward and another operation in (c)."""
    total = 0
    for d in range(problem.devices):
        if binds(problem, d):
            kinds = sum(len(problem.kinds(s)) for s in problem.hosted[d])
            total += len(problem.hosted[d]) * kinds * problem.micro_batches**2
    return total


class CpsatModel:
    """Model of a problem whose operations all take time; ``high`` is the largest value of the objective."""

    def __init__(self, problem: PipelineSchedule, known: Windows, low: int, high: int) -> None:
        self.problem, self.high = problem, high
        self.sat = cp_model().CpModel()
        self.objective = self.sat.new_int_var(low, high, "")
        self.begins: dict[Op, Any] = {}
        self._earliest: dict[Op, int] = {}
        self._latest: dict[Op, int] = {}
        self._before: dict[tuple[Op, Op], Any] = {}
        self._sizes: dict[Op, Any] = {}  # of operations that last until their tensor has been sent
        self._variables(known, high)
        self._order()
        self._devices()
        self._memory()
        self._staircases()
        self._admissions()
        self.sat.minimize(self.objective)

    def solver(self, limits: Limits, linear: bool = False) -> Any:
        """Create a solver for this model, with linear programmes or without; one thread runs the default search."""
        solver = cpsat_solver(limits)
        parameters = solver.parameters
        if limits.workers > 1:
            parameters.subsolvers.extend(SUBSOLVERS[linear])
        if not linear:
            parameters.linearization_level = 0
            # Off, since it costs more than it finds: proofs take half as long without it, with 50 % more conflicts.
            parameters.use_precedences_in_disjunctive_constraint = False
        parameters.cp_model_probing_level = 0
        parameters.symmetry_level = 0
        return solver

    def hint(self, begun: Starts, value: int) -> None:
        """Add a complete hint: starts, literals and objective."""
        for op, variable in self.begins.items():
            self.sat.add_hint(variable, begun[op])
        for (a, b), literal in self._before.items():
            duration = self.problem.duration(a) if self._beside(a, b) else 1
            self.sat.add_hint(literal, begun[a] + duration <= begun[b])
        for op, size in self._sizes.items():
            transfer = self.problem.transfer(op)
            assert transfer is not None
            self.sat.add_hint(size, begun[transfer] + self.problem.duration(transfer) - begun[op])
        self.sat.add_hint(self.objective, value)

    def _variables(self, known: Windows, high: int) -> None:
        for op in self.problem.everything():
            kind, s, i = op
            earliest = known.head[kind][s][i]
            latest = high - known.tail[kind][s][i] - self.problem.duration(op)
            self._earliest[op], self._latest[op] = earliest, latest
            self.begins[op] = self.sat.new_int_var(earliest, max(earliest, latest), "")

    def _end(self, op: Op) -> Any:
        """Time when the operation's lane or resource is free again and its memory is freed."""
        if self.problem.overlap == "none":
            transfer = self.problem.transfer(op)
            if transfer is not None:
                return self._end(transfer)
        return self.begins[op] + self.problem.duration(op)

    def _arrives(self, begin: Any, op: Op, lag: int) -> None:
        """Add: ``begin`` is no earlier than the arrival of the tensor of ``op``."""
        transfer = self.problem.transfer(op)
        if transfer is not None:
            self.sat.add(begin >= self._end(transfer) + lag)
        if transfer is None or self.problem.overlap == "stream":
            self.sat.add(begin >= self._end(op) + lag)

    def _order(self) -> None:
        """Add (a) and (f)."""
        problem, add = self.problem, self.sat.add
        for op, begin in self.begins.items():
            kind, s, i = op
            if i:
                add(begin >= self._end(Op(kind, s, i - 1)))
            for (other, t), lag in problem.inputs.get((kind, s), ()):
                if t == s:
                    add(begin >= self._end(Op(other, t, i)))
                else:
                    self._arrives(begin, Op(other, t, i), lag)
            transfer = problem.transfer(op)
            if transfer is not None:
                add(self.begins[transfer] >= begin + problem.ready[transfer.kind, s])
            if i == problem.micro_batches - 1 and kind in ("F", "I", "W"):
                add(self.objective >= self._end(op) + problem.ending[s])

    def _devices(self) -> None:
        """Add (b)."""
        resources = [rows for rows in self.problem.carried.values() if len(rows) > 1]  # (a) orders a single row
        for rows in (*self.problem.lanes, *resources):
            self.sat.add_no_overlap(list(map(self._interval, self.problem.all_of(rows))))

    def _interval(self, op: Op) -> Any:
        if self.problem.overlap != "none" or self.problem.transfer(op) is None:
            return self.sat.new_fixed_size_interval_var(self.begins[op], self.problem.duration(op), "")
        # The tail counts from the end without waiting. The end itself need only lie within the horizon.
        least = self.problem.duration(op)
        self._sizes[op] = self.sat.new_int_var(least, max(least, self.high - self._earliest[op]), "")
        return self.sat.new_interval_var(self.begins[op], self._sizes[op], self._end(op), "")

    def _memory(self) -> None:
        """Add (c)."""
        problem = self.problem
        for d in filter(lambda d: binds(problem, d), range(problem.devices)):
            others = [op for op in problem.operations(d) if problem.delta[op.kind][op.stage]]
            for op in problem.operations(d):
                if op.kind != "F" or not problem.taken[op.stage]:
                    continue
                held: Any = problem.taken[op.stage]
                for other in others:
                    if other != op:
                        held += problem.delta[other.kind][other.stage] * self._ends_before(other, op)
                if not isinstance(held, int):
                    self.sat.add(held <= problem.room[d])
                elif held > problem.room[d]:
                    self.sat.add_bool_or([])

    def _ends_before(self, a: Op, b: Op) -> Any:
        """Value of x_{a,b}: 0 or 1 if it is known, otherwise a literal."""
        problem = self.problem
        if self._beside(a, b):
            return self._ends_before_beside(a, b)
        if precedes(problem, a, b) or self._latest[a] < self._earliest[b] + problem.duration(b):
            return 1
        if precedes(problem, b, a) or self._latest[b] < self._earliest[a] + problem.duration(a):
            return 0
        if (b, a) in self._before:
            return self._before[b, a].negated()
        if (a, b) not in self._before:
            literal = self.sat.new_bool_var("")
            self.sat.add(self.begins[b] >= self._end(a)).only_enforce_if(literal)
            self.sat.add(self.begins[a] >= self._end(b)).only_enforce_if(literal.negated())
            self._before[a, b] = literal
        return self._before[a, b]

    def _beside(self, a: Op, b: Op) -> bool:
        """True if a and b may run concurrently, on two lanes of one device."""
        return self.problem.has_lanes(self.problem.device[b.stage]) and (a.kind == "F") != (b.kind == "F")

    def _ends_before_beside(self, a: Op, b: Op) -> Any:
        """Value of x_{a,b} for concurrent lanes: b begins after the end of a, or a frees nothing for it."""
        duration = self.problem.duration(a)
        if precedes(self.problem, a, b) or self._latest[a] + duration <= self._earliest[b]:
            return 1
        if precedes(self.problem, b, a) or self._earliest[a] + duration > self._latest[b]:
            return 0
        if (a, b) not in self._before:
            literal = self.sat.new_bool_var("")
            self.sat.add(self.begins[b] >= self._end(a)).only_enforce_if(literal)
            self._before[a, b] = literal
        return self._before[a, b]

    def _staircases(self) -> None:
        """Add (d)."""
        for (a, b), literal in self._before.items():
            implied = [(a._replace(micro_batch=a.micro_batch - 1), b), (a, b._replace(micro_batch=b.micro_batch + 1))]
            if a.kind == "W":
                implied.append((a._replace(kind="I"), b))
            for pair in implied:
                if pair in self._before:
                    self.sat.add_implication(literal, self._before[pair])

    def _admissions(self) -> None:
        """Add (e)."""
        for s in range(self.problem.stages):
            admission = Admission(self.problem, s)
            for i in range(self.problem.micro_batches):
                begin = self.begins[Op("F", s, i)]
                if i >= admission.most:
                    self.sat.add(begin >= self._end(Op("I", s, i - admission.most)))
                weights = admission.weights(i, i)
                if weights:
                    self.sat.add(begin >= self._end(Op("W", s, weights - 1)))
