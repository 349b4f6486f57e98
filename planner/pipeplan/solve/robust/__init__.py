"""Choice of plans whose times vary, by the mean or a quantile of perturbed steps instead of the nominal step.

::

    plans found ──▶ contenders ──▶ steps of each, perturbed alike ──▶ mean, quantile ──▶ the least
                    (nominal       in lockstep where no links are
                     close by)     shared, else by an event loop
"""
