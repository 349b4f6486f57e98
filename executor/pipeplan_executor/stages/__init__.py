"""Stages of a plan: split of the model, weights of the unsplit model, forward and backward of a micro-batch.

::

    source ──▶ layers ──split──▶ stage modules ──materialise──▶ with weights ──stage──▶ F, B, I, W
"""
