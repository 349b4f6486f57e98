"""A model as the stages of a plan: cut, with the unsplit weights, and what each computes of a micro-batch.

::

    source ──▶ row of layers ──split──▶ stage modules ──materialise──▶ with weights ──stage──▶ F, B, I, W
"""
