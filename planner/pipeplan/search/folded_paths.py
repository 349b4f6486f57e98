"""`FoldedPaths`: critical paths of devices with several stages each, as a sum over devices by their super layers.

::

    device 0   f0 f1 .  F0 I0 W0 …         T ≥ 2 f + F + 3 I + … of the layers that device 0 has in each round
    device 1      f0 F0 f1 …                 + … of device 1's + what is sent where rounds are cut

The lists of a family do not depend on the partition. So the actions of a path follow one another in every partition,
and its length is a sum of a number for each device and the super layers that it has (docs/bounds/chain.md, "Paths of
devices with several stages").
"""

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
from pipeplan_formulations.common.layer_tables import sums_before
from pipeplan_formulations.partition.spans import NEVER


def has_folded_paths(candidate: Candidate) -> bool:
    """Return whether critical paths of a candidate are inequalities of all its partitions of super layers."""
    chain, alike = candidate.chain, len(set(candidate.replicas)) == 1
    own = candidate.unfolding is not None and alike and chain.slices == 1 and not any(chain.passes)
    return own and chain.overlap is Overlap.COPY and candidate.objective is Objective.STEP and not chain.staleness


class FoldedPaths:
    """Critical paths of a candidate for which `has_folded_paths`.

    They are those of one replica of each device, the one with the most micro-batches, without sums over replicas.
    """

    def __init__(self, candidate: Candidate, cluster: Cluster) -> None:
        assert candidate.unfolding is not None
        self._candidate, self._cluster, self._folding = candidate, cluster, candidate.unfolding.folding
        self._first, self._end = np.triu_indices(self._folding.layers + 1, 1)

    def find(self, boundaries: Boundaries) -> Array:
        """Return what each device adds to the length of the critical path of a partition, on any super layers.

        Returns
        -------
        array of int, shape (S, n + 1, n + 1)
            Nanoseconds of device d on super layers a … e − 1 at [d, e, a]; `NEVER` elsewhere.
        """
        stages, edges = self._candidate.unfolded(boundaries)
        chain = stages.chain
        pipeline = self._alone(
            assemble(chain, self._cluster, edges, stages.recompute(edges), placement=stages.placement), chain
        )
        many = -(-stages.micro_batches // stages.replicas[0])
        schedule = with_reductions(stages.family.write((1,) * stages.depth, many), pipeline.tied)
        path = read_path(longest_path(schedule, pipeline, share=False), pipeline, schedule)
        return self._shares(path, chain)

    def _alone(self, pipeline: Pipeline, chain: Chain) -> Pipeline:
        """The first replica of each device alone, with all parameters in place.

        Of all sums there are those of weights that the first and the last stage share on different devices: they are
        there in every partition, and take as long.
        """
        homes = [ranks[0] for ranks in pipeline.placement]
        place = {rank: number for number, rank in enumerate(dict.fromkeys(homes))}
        joint = self._joint(chain) if homes[0] != homes[-1] else 0
        last = len(homes) - 1
        ends = (0, last) if joint else ()
        return replace(
            pipeline,
            stages=tuple(
                replace(stage, gather=0, gather_buckets=(), reduce=joint * (s in ends), buckets=())
                for s, stage in enumerate(pipeline.stages)
            ),
            placement=tuple((place[rank],) for rank in homes),
            transfers=tuple(map(_first, pipeline.transfers)),
            returns=tuple(map(_first, pipeline.returns)),
            runtime=tuple(pipeline.runtime[rank] for rank in place),
            limits=tuple(pipeline.limits[rank] for rank in place),
            tied=(ends,) if ends else (),
            coupled=False,
        )

    @staticmethod
    def _joint(chain: Chain) -> int:
        """Least nanoseconds in which the first and the last stage sum weights that their end layers share."""
        ends = (0, chain.layers - 1)
        shared = (each for each in chain.shared if each.parameters and (each.layers[0], each.layers[-1]) == ends)
        return sum(int(min(each.together[0], each.together[-1])) for each in shared)

    def _shares(self, path: Path, chain: Chain) -> Array:
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
        devices, a, e = range(self._candidate.depth), self._first, self._end
        found = np.zeros((len(devices), len(a)), np.int64)
        fewest = np.full(len(devices), NEVER)
        for number in range(self._folding.rounds):
            columns = np.array(self._folding.columns(number))
            first, behind = (columns[e], columns[a]) if self._folding.returns(number) else (columns[a], columns[e])
            for place, d in enumerate(self._folding.in_turn(devices, number)):
                stage = number * len(devices) + place
                found[d] += before[stage, behind] - before[stage, first] + sends[stage, behind - 1]
                fewest[d] = min(fewest[d], again[stage])
        found[0] += (path.reduce[0] + path.reduce[-1]) * self._joint(chain)
        shares = np.full((len(devices), self._folding.layers + 1, self._folding.layers + 1), NEVER)
        shares[:, e, a] = found + fewest[:, None] * self._longer
        return shares

    @cached_property
    def _longer(self) -> Array:
        """Least recomputed forward time of each device on each run of super layers, shape (devices, runs)."""
        recomputing, wanted = self._candidate.problem.recomputing, np.ones(len(self._first), np.bool_)
        return np.stack(
            [recomputing.lower_bounds(d, self._first, self._end, wanted) for d in range(self._candidate.depth)]
        )


def _first(row: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
    return row[:1]
