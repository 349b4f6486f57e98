"""Split backward: weight gradients computed later than input gradients, without computing anything twice.

::

    forward      y = x · Wᵀ + b
    I            dx = dy · W                    at once, on the way back
                 queue ◀── (x, dy)              instead of dW
    W            W.grad += dyᵀ · x              when the queue of the micro-batch is processed
                 b.grad += Σ dy

Linear maps, convolutions and embeddings are split in this way, as zero-bubble schedules assume (Qi, Wan, Huang, Lin,
Zero Bubble Pipeline Parallelism, ICLR 2024, section 2). Parameters of other operations (norms, recurrent cells) get
their gradients within I, where these cost little next to the input gradient.

``queue.py`` collects delayed weight gradients; ``products.py`` and ``convolutions.py`` are the operations;
``attach.py`` switches modules and captured graphs to them. The profiler and the executor run the same code. This
package imports torch only in its files.
"""
