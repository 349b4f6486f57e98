"""Sums of gradients of which a bounded share need not arrive: messages, sums, and a hook for torch's data parallel."""
