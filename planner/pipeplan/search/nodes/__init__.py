"""Nodes of the branch-and-bound tree, named by the plans that they hold."""
