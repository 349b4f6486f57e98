"""Lower bounds on suffixes of allocations, by first layer and used devices, from a dynamic programme.

`suffix` states the programme and runs it, over the blocks of stages of `passes` between the boundaries of `reachable`.
`transition_costs` has the cost of a stage, `suffix_tables` that of a hop, and `spans` the recomputation of a stage.
`refinement` raises the bound with the delays by splitting the `boxes` of allocations; `trace` reads allocations back.
"""
