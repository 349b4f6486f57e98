"""Workloads from configurations of ``transformers``, with random weights and batches, by a line of text.

::

    hf:gpt2                                   a type of model, with the library's default sizes
    hf:llama?num_hidden_layers=2&tokens=64    other sizes; tokens is the length of a sample
    hf:runs/my-model                          a local folder with a config.json
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.core.wording import hint

PREFIX = "hf:"
TOKENS = 128
"""Length of a sample of text, where nothing else is asked for and the model's positions suffice."""
SOUND = 16_000
"""Length of a sample of sound, one second of what the speech models take."""
UNPREDICTABLE = {"apply_spec_augment": False, "layerdrop": 0.0}
"""Settings that draw random numbers outside torch, or leave whole layers out at random, and what turns them off."""


def pretrained_config(spec: str) -> tuple[Any, Callable[[int, Any], tuple[Any, Any]], Callable[[Any, Any], Any]]:
    """Return the model that ``hf:…`` names, with random weights, and the functions that draw its batches and loss.

    Raises
    ------
    InputError
        If transformers is not installed, or the type, the folder or an option is not known.
    """
    try:
        import transformers
    except ImportError as error:
        raise InputError(f"{spec} needs the package transformers: pip install transformers") from error
    name, _, query = spec.removeprefix(PREFIX).partition("?")
    options = dict(_options(spec, query))
    length = options.pop("tokens", None)
    if length is not None and (not isinstance(length, int) or length < 1):
        raise InputError(f"{spec}: tokens is the length of a sample, a whole number of at least 1, not {length!r}")
    config = _config(transformers, spec, name, options)
    try:
        module = _model(transformers, config)
    except (ValueError, TypeError, AssertionError, RuntimeError, ZeroDivisionError, KeyError) as error:
        raise InputError(f"transformers cannot build {spec}: {error}") from error
    module.train()
    return module, partial(_draw, module.config, module.main_input_name, length), _loss


def _options(spec: str, query: str) -> Iterator[tuple[str, Any]]:
    for part in filter(None, query.split("&")):
        name, equals, text = part.partition("=")
        if not equals:
            raise InputError(f"{spec}: {part!r} is no option; write name=value, like num_hidden_layers=2")
        value: Any = text
        with suppress(ValueError):  # what is not JSON is a word
            value = json.loads(text)
        yield name, value


def _config(transformers: Any, spec: str, name: str, options: Mapping[str, Any]) -> Any:
    known = transformers.CONFIG_MAPPING
    folder = Path(name).expanduser()
    is_folder = (folder / "config.json").is_file()
    if not is_folder and name not in known:
        what = "has no config.json" if folder.is_dir() else "is neither a type of model nor a folder"
        raise InputError(
            f"{spec}: {name!r} {what}; write a type that transformers has, like hf:gpt2, or a local folder with a "
            f"config.json (nothing is downloaded){hint(name, known.keys())}"
        )
    plain = transformers.AutoConfig.from_pretrained(folder, local_files_only=True) if is_folder else known[name]()
    for option in options:
        if not hasattr(plain, option):
            raise InputError(f"{spec}: {type(plain).__name__} has no {option}{hint(option, plain.to_dict())}")
    try:
        config = type(plain).from_dict({**plain.to_dict(), **options}) if is_folder else known[name](**options)
    except Exception as error:  # each configuration checks its values in a way of its own
        raise InputError(f"{spec}: {error}") from error
    for option, off in UNPREDICTABLE.items():
        if hasattr(config, option) and option not in options:
            setattr(config, option, off)
    return config


def _model(transformers: Any, config: Any) -> Any:
    """Return the model that the configuration names, otherwise the first kind of model that its type has."""
    import torch

    named = [getattr(transformers, each, None) for each in getattr(config, "architectures", None) or ()]
    if named and named[0] is not None:
        return named[0]._from_config(config, dtype=torch.float32)
    both = ("Seq2SeqLM", "SpeechSeq2Seq") if getattr(config, "is_encoder_decoder", False) else ()
    for kind in (*both, "MaskedLM", "CausalLM", "ImageClassification", "CTC", "AudioClassification"):
        auto = getattr(transformers, f"AutoModelFor{kind}")
        if type(config) in auto._model_mapping:
            found = auto._model_mapping[
                type(config)
            ]  # several classes where a teacher is distilled, the plain one first
            return (found[0] if isinstance(found, tuple) else found)._from_config(config, dtype=torch.float32)
    return transformers.AutoModel.from_config(config, dtype=torch.float32)


def _draw(config: Any, reads: str, length: int | None, samples: int, generator: Any) -> tuple[dict[str, Any], Any]:
    """Draw random inputs: text, images or sound. Targets are numbers of any size, see `_loss`."""
    import torch

    of_text = getattr(config, "text_config", config)
    words = getattr(of_text, "vocab_size", 2)
    most = getattr(of_text, "max_position_embeddings", None) or TOKENS
    tokens = min(TOKENS, most) if length is None else length

    def numbers(*shape: int, below: int = 2**30) -> Any:
        return torch.randint(below, (samples, *shape), generator=generator)

    inputs: dict[str, Any] = {}
    if "input_ids" in reads:
        inputs["input_ids"] = numbers(tokens, below=words)
    if "pixel_values" in reads or hasattr(config, "vision_config"):
        of_images = getattr(config, "vision_config", config)
        size = of_images.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        image = samples, getattr(of_images, "num_channels", 3), height, width
        inputs["pixel_values"] = torch.randn(image, generator=generator)
    if reads == "input_values":
        inputs["input_values"] = torch.randn((samples, SOUND if length is None else length), generator=generator)
    if reads == "input_features":
        features = samples, config.num_mel_bins, 2 * config.max_source_positions
        inputs["input_features"] = torch.randn(features, generator=generator)
    if not inputs:
        raise InputError(
            f"hf:{config.model_type} reads {reads}, and hf: draws only text, images and sound; write a Workload"
        )
    if getattr(config, "is_encoder_decoder", False):
        positions = getattr(config, "max_target_positions", None) or tokens
        inputs["decoder_input_ids"] = numbers(min(tokens, positions), below=words)
    text = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    return inputs, numbers() if text is None else numbers(text.shape[1])


def _loss(outputs: Any, targets: Any) -> Any:
    """Return the cross entropy of all logits with the targets, modulo their classes; without logits, a mean square."""
    from torch.nn import functional

    logits = getattr(outputs, "logits", None)
    if logits is None:
        return outputs[0].float().square().mean()
    rows = logits.flatten(0, -2)
    wanted = targets.flatten() % logits.shape[-1]
    return functional.cross_entropy(rows, wanted.repeat_interleave(len(rows) // len(wanted)))
