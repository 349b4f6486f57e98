"""The heuristic balancers: how other tools cut a chain, one file each, all with one signature.

None of them proves anything. They are warm starts for `pipeplan.solve` and the baseline in its report.
docs/balancers.md tells what each minimises, what it ignores, and where it fails.
"""

from collections.abc import Mapping
from types import MappingProxyType

from pipeplan.baselines.partitioners import (
    bapipe,
    chain_minmax,
    deepspeed_time,
    gpipe,
    parameters,
    pipedream,
    torchgpipe,
    uniform,
)
from pipeplan.baselines.partitioners.balancer import Balancer, NotApplicable
from pipeplan.baselines.partitioners.preference import preferred_family

__all__ = ["BALANCERS", "Balancer", "NotApplicable", "preferred_family"]

BALANCERS: Mapping[str, Balancer] = MappingProxyType(
    {
        balancer.name: balancer
        for balancer in (
            uniform.DEEPSPEED,
            uniform.TORCHTITAN,
            uniform.MEGATRON,
            parameters.BALANCER,
            deepspeed_time.BALANCER,
            gpipe.BALANCER,
            torchgpipe.BALANCER,
            pipedream.BALANCER,
            chain_minmax.BALANCER,
            bapipe.BALANCER,
        )
    }
)
"""Every balancer by its name."""
