"""`FoldedPaths`: critical paths of devices with several stages each, as a sum over devices by their super layers.

::

    device 0   f0 f1 .  F0 I0 W0 …         T ≥ 2 f + F + 3 I + … of the layers that device 0 has in each round
    device 1      f0 F0 f1 …                 + … of device 1's + what is sent where rounds are cut

The lists of a family do not depend on the partition. So the actions of a path follow one another in every partition,
and its length is a sum of a number for each device and the super layers that it has (docs/bounds/chain.md, "Paths of
devices with several stages").
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from pipeplan.core.cluster import Cluster, Overlap
from pipeplan.core.job import Objective
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.shared_weights import with_reductions
from pipeplan.costs.assembly import assemble
from pipeplan.costs.chain import Array, Boundaries, Chain
from pipeplan.search.path_cuts import Path, read_path
from pipeplan.search.space.candidates import Candidate
from pipeplan.simulate import longest_path
from pipeplan_formulations.common.layer_tables import Flags, sums_before
from pipeplan_formulations.partition.spans import NEVER


def has_folded_paths(candidate: Candidate) -> bool:
    """Return whether critical paths of a candidate are inequalities of all its partitions of super layers."""
    chain, alike = candidate.chain, len(set(candidate.replicas)) == 1
    own = candidate.unfolding is not None and alike and chain.slices == 1 and not any(chain.passes)
    return own and chain.overlap is Overlap.COPY and candidate.objective is Objective.STEP and not chain.staleness


class FoldedPaths:
    """Critical paths of a candidate for which `has_folded_paths`.

    They are those of one replica of each device, the one with the most micro-batches.

    Parameters
    ----------
    wanted : sequence of array of bool, optional
        For each device whether partitions are asked for in which it has super layers a … e − 1, at [e, a]. Of others it
        is not known what is recomputed, and nothing is counted. By default all are.
    """

    def __init__(self, candidate: Candidate, cluster: Cluster, wanted: Sequence[Flags] | None = None) -> None:
        assert candidate.unfolding is not None
        self._candidate, self._cluster, self._folding = candidate, cluster, candidate.unfolding.folding
        self._first, self._end = np.triu_indices(self._folding.layers + 1, 1)
        self._wanted = wanted

    def find(self, boundaries: Boundaries) -> Array:
        """Return what each device adds to the length of the critical path of a partition, on any super layers.

        Returns
        -------
        array of int, shape (S, n + 1, n + 1)
            Nanoseconds of device d on super layers a … e − 1 at [d, e, a]; `NEVER` elsewhere.
        """
        stages, edges = self._candidate.unfolded(boundaries)
        chain = stages.chain
        apart = stages.placement[0] != stages.placement[-1]
        joint = self._joint(chain) if apart else 0
        whole = assemble(chain, self._cluster, edges, stages.recompute(edges), placement=stages.placement)
        pipeline = self._alone(whole, tied=joint > 0)
        many = -(-stages.micro_batches // stages.replicas[0])
        schedule = with_reductions(stages.family.write((1,) * stages.depth, many), pipeline.tied)
        path = read_path(longest_path(schedule, pipeline, share=False), pipeline, schedule)
        return self._shares(path, chain, joint)

    @staticmethod
    def _alone(pipeline: Pipeline, tied: bool) -> Pipeline:
        """The first replica of each device alone, with all parameters in place.

        ``tied``: the first and the last stage share weights, whose sum is one collective in every partition.
        """
        homes = [ranks[0] for ranks in pipeline.placement]
        place = {rank: number for number, rank in enumerate(dict.fromkeys(homes))}
        ends = (0, len(homes) - 1) if tied else ()
        alone = [(s,) for s in range(len(homes)) if s not in ends and len(pipeline.placement[s]) > 1]
        return replace(
            pipeline.without_gathers(),
            placement=tuple((place[rank],) for rank in homes),
            transfers=tuple(map(_first, pipeline.transfers)),
            returns=tuple(map(_first, pipeline.returns)),
            runtime=tuple(pipeline.runtime[rank] for rank in place),
            limits=tuple(pipeline.limits[rank] for rank in place),
            tied=(*alone, *([ends] if ends else [])),
            coupled=False,
        )

    @staticmethod
    def _joint(chain: Chain) -> int:
        """Least nanoseconds in which the first and the last stage sum weights that their end layers share."""
        ends = (0, chain.layers - 1)
        shared = (each for each in chain.shared if each.parameters and (each.layers[0], each.layers[-1]) == ends)
        return sum(int(min(each.together[0], each.together[-1])) for each in shared)

    def _shares(self, path: Path, chain: Chain, joint: int) -> Array:
        """What devices add to a path, by the layers that they may have in each round."""
        rows = (
            (path.forward, chain.forward),
            (path.backward, chain.backward),
            (path.input_gradient, chain.input_gradient),
            (path.weight_gradient, chain.weight_gradient),
            (path.update, chain.update),
        )
        # of each stage the nanoseconds before a layer, and those of the tensors behind it
        before = sums_before(np.sum([np.array(counts)[:, None] * times for counts, times in rows], axis=0))
        sends = np.add(path.send, path.send_back)[:, None] * chain.send
        sends = np.pad(sends + (np.add(path.latency, path.latency_back) * chain.latency)[:, None], ((0, 1), (0, 1)))
        again = np.add(path.backward, path.input_gradient)
        sums = _Left(chain.reduce, chain.hides, chain.reduce_base)
        gathers = _Left(chain.gather, chain.gather_hides, chain.gather_base)
        devices, a, e = range(self._candidate.depth), self._first, self._end
        found = np.zeros((len(devices), len(a)), np.int64)
        summed, after = np.zeros_like(found), np.zeros_like(found)
        fewest, ends = np.full((2, len(devices)), NEVER)
        for number in range(self._folding.rounds):
            columns = np.array(self._folding.columns(number))
            first, behind = (columns[e], columns[a]) if self._folding.returns(number) else (columns[a], columns[e])
            for place, d in enumerate(self._folding.in_turn(devices, number)):
                stage = number * len(devices) + place
                found[d] += before[stage, behind] - before[stage, first] + sends[stage, behind - 1]
                fewest[d], ends[d] = min(fewest[d], again[stage]), min(ends[d], path.reduce[stage])
                left = sums.of(stage, first, behind)
                summed[d] += path.reduce[stage] * np.maximum(left, 0)
                after[d] += left
                if d == 0:
                    found[d] += np.maximum(gathers.of(stage, first, behind), 0)
        if not chain.halves:  # sums of a device hide behind backwards of all its stages
            summed = ends[:, None] * np.maximum(after, 0)
        for d, count in ((0, path.reduce[0]), (devices[-1], path.reduce[-1])):
            summed[d] = np.maximum(summed[d], count * joint)
        shares = np.full((len(devices), self._folding.layers + 1, self._folding.layers + 1), NEVER)
        shares[:, e, a] = found + summed + fewest[:, None] * self._longer
        return shares

    @cached_property
    def _longer(self) -> Array:
        """Least recomputed forward time of each device on each run of super layers, shape (devices, runs)."""
        recomputing, a, e = self._candidate.problem.recomputing, self._first, self._end
        every = [np.ones(len(a), np.bool_)] * self._candidate.depth
        wanted = every if self._wanted is None else [own[e, a] for own in self._wanted]
        return np.stack([recomputing.lower_bounds(d, a, e, own) for d, own in enumerate(wanted)])


class _Left:
    """What is left of sums of stages behind the passes that hide them, or of gathers before these; at least.

    Below 0 it is what these could hide beside them.
    """

    def __init__(self, times: Array, hides: Array, base: Array) -> None:
        self._times, self._hides, self._base = sums_before(times), sums_before(hides), base

    def of(self, stage: int, first: Array, behind: Array) -> Array:
        """Return the nanoseconds of a stage on runs of layers."""
        times, hides = (row[stage, behind] - row[stage, first] for row in (self._times, self._hides))
        found: Array = times + self._base[stage] * (times > 0) - hides
        return found


def _first(row: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
    return row[:1]
