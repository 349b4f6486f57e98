"""Nodes of the branch-and-bound tree, named by the sets of plans that they hold."""
