"""Searching for the best plan, and proving how good it is.

::

    candidates ──▶ judge (every balancer's plan, by simulation) ──▶ incumbent
        │                                                              │
        └──▶ prove (bound below, plan above, path cuts between) ◀──────┘ closes what cannot beat it
"""
