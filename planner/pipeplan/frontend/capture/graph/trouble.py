"""What torch.export says when it cannot capture a module, in words that say what to change."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from pipeplan.core.errors import InputError, PipeplanError

_ADVICE = (
    (
        ("data-dependent", "DataDependent", "_local_scalar_dense", "nonzero", "unbacked"),
        "what it computes depends on values in the batch (an if, a loop or a size taken from a tensor); write it with "
        "torch.where or masks, or give stage modules of your own with Stages",
    ),
    (
        ("pytree", "Unsupported output type", "register_dataclass"),
        "it returns an object that torch does not know how to take apart; return a tensor, a tuple or a dict, or "
        "register the class with torch.export.register_dataclass",
    ),
)
_OTHERWISE = "call it with such a batch to see whether it runs, or give stage modules of your own with Stages"


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn errors of the capture into `InputError`; be silent about tensors that LSTMs keep in a list of their own."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The tensor attribute", UserWarning)
            yield
    except PipeplanError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        advice = next((words for signs, words in _ADVICE if any(sign in text for sign in signs)), _OTHERWISE)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        shown = lines[0][:300] if lines else type(error).__name__
        raise InputError(f"torch.export cannot capture {name}: {shown}. Advice: {advice}") from error
