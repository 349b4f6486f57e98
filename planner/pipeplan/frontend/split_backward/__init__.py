"""Split backward: weight gradients computed later than input gradients, without computing anything twice.

::

    forward      y = x · Wᵀ + b
    I            dx = dy · W                    at once, on the way back
                 queue ◀── (x, dy)              instead of dW
    W            W.grad += dyᵀ · x              when the queue of the micro-batch is worked off
                 b.grad += Σ dy

Linear maps, convolutions and embeddings do this, as zero-bubble schedules suppose (Qi, Wan, Huang, Lin, Zero Bubble
Pipeline Parallelism, ICLR 2024, section 2). Parameters of other operations (norms, recurrent cells) get their gradients
within I, where they cost little next to the input gradient that comes with them.

``queue.py`` collects; ``products.py`` and ``convolutions.py`` are the operations; ``attach.py`` makes
modules and captured graphs use them. The profiler and the executor run the same code. Torch is imported by the files.
"""
