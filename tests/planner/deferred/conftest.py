"""Small tensors, one thread."""

from one_thread import one_thread  # noqa: F401
