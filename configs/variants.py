"""Sizes of a config, named by its variants: ``--config=configs/x.py:laptop``."""

import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs.schema import twin
from reducers.registry.components import is_component
from runs.errors import ConfigError

Sizes = Mapping[str, Any]  # dotted key -> value; the key of a block replaces the whole block

# For "smoke" configs whose own networks need larger images than the digits.
TINY_RESNET: Sizes = {"model": {"name": "resnet20", "num_filters": 4, "dtype": "bfloat16"}}


def sized(config: ConfigDict, variant: str, *, sizes: Mapping[str, Sizes] | None = None) -> ConfigDict:
    """Returns the config in the size that a variant names.

    "" changes nothing. With "smoke" a config takes seconds: few workers, small batches, four steps, on built-in data
    unless the data are the user's own.

    Args:
      config: the experiment, at the paper's size.
      variant: "", "smoke", or a key of ``sizes``.
      sizes: further variants, each with the keys that it sets. Keys of "smoke" are set after its own changes.

    Raises:
      ConfigError: if there is no such variant; lists those that exist.
    """
    sizes = sizes or {}
    allowed = sorted({"smoke", *sizes})
    if variant and variant not in allowed:
        raise ConfigError(f"variant={variant!r}: allowed: {', '.join(allowed)}")
    if variant == "smoke":
        _shrink(config)
    for path, value in sizes.get(variant, {}).items():
        _set(config, path, value)
    return config


def _shrink(config: ConfigDict) -> None:
    """Makes a config take seconds: few workers, small batches, four steps, built-in data."""
    with config.ignore_type():
        if not is_component(config.data.name):
            config.data.update(_BUILT_IN["text" if config.data.name == "text" else "images"])
        config.update(num_workers=min(config.num_workers, 8), batch_size_per_worker=4)
        config.accumulation.update(count=math.gcd(config.accumulation.get("count", 1), 4))
        for key in {"num_required", "num_batches"} & set(config.reducer):
            config.reducer[key] = max(1, min(config.reducer[key], config.num_workers - 1))
    for key in [key for key in config.schedule if key.endswith("_epochs")]:
        lengths = config.schedule[key]  # one number, or several in a row
        steps = tuple(range(1, 1 + len(lengths))) if isinstance(lengths, tuple) else 1
        _set(config, f"schedule.{twin(key)}", steps)
    _set(config, "train_steps", 4)
    for key in ("log_every", "eval_every", "checkpoint_every"):
        _set(config, f"{key}_steps", 2)


_BUILT_IN: dict[str, Sizes] = {
    "images": {"name": "digits", "dir": "", "image_size": None},
    "text": {"source": "pydoc", "dir": "", "tokenizer": "bytes", "sequence_length": 32},
}


def _set(config: ConfigDict, path: str, value: Any) -> None:
    """Sets a key, and removes the other form of a duration."""
    head, _, key = path.rpartition(".")
    holder = config[head] if head else config
    with config.ignore_type():
        holder[key] = ConfigDict(value) if isinstance(value, Mapping) else value
        other = twin(key)
        if other is not None and other in holder:
            if head:
                del holder[other]
            else:
                holder[other] = None
