"""Write the analytic models of ``datasets/models``: ``python scripts/analytic_models.py [FOLDER]``."""

import sys
from pathlib import Path

from analytic.convolutional import resnet_50, vgg_16
from analytic.transformer import SHAPES, transformer

from pipeplan.core.model import Model
from pipeplan.io.model_file import write_model
from pipeplan.io.series.gnmt import gnmt

FOLDER = Path(__file__).resolve().parent.parent / "datasets" / "models"


def models() -> list[Model]:
    """Every analytic model."""
    return [vgg_16(), resnet_50(), gnmt(8), gnmt(16), *(transformer(shape) for shape in SHAPES)]


def main() -> None:
    """Write one file per model."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for model in models():
        write_model(model, folder / f"{model.name}.yaml")
        print(f"{model.name}: {len(model.layers)} layers, {sum(layer.parameters for layer in model.layers)} bytes")


if __name__ == "__main__":
    main()
