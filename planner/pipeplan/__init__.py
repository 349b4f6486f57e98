"""pipeplan: provably good plans for distributed training."""

__version__ = "0.1.0"
