"""Checkpoints: the state that a run needs to continue, under the names of the unsplit model.

::

    pipeline ──save──▶ folder/step-00000020 ──load──▶ a pipeline of any plan
                                │      ▲
                           as_plain    │ load
                                ▼      │
                       {"model": state_dict, "optimizer": state_dict, …}      a model without a pipeline

    folder/step-00000020 ──save_safetensors──▶ model.safetensors ──weights=──▶ a pipeline, `transformers`, …
"""

from pipeplan_executor.checkpoint.folder import latest
from pipeplan_executor.checkpoint.load import Restored, load
from pipeplan_executor.checkpoint.plain import as_plain, save_safetensors
from pipeplan_executor.checkpoint.save import save
from pipeplan_executor.checkpoint.training_state import TrainingState

__all__ = ["Restored", "TrainingState", "as_plain", "latest", "load", "save", "save_safetensors"]
