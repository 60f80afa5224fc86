"""Known sizes of data sets, so that a run on them can be checked before they are downloaded."""

from typing import Any

import jax
import numpy as np

from data import decoded, sources
from data.examples import Dataset, Info
from data.sources import Source
from data.texts import tokenizers
from reducers.registry.components import is_component

# Image shape, classes, training examples and test examples, as TFDS describes the sets.
IMAGE_SETS: dict[str, tuple[tuple[int, int, int] | None, int, int, int]] = {
    "cifar10": ((32, 32, 3), 10, 50_000, 10_000),
    "cifar100": ((32, 32, 3), 100, 50_000, 10_000),
    "fashion_mnist": ((28, 28, 1), 10, 60_000, 10_000),
    "imagenet2012": (None, 1000, 1_281_167, 50_000),
    "mnist": ((28, 28, 1), 10, 60_000, 10_000),
}

NUM_SEQUENCES = 10_000_000  # for texts of unknown length


def make_or_assume(name: str, **kwargs) -> Source:
    """Finds the data of a config block; if they are missing, returns a source of assumed sizes that cannot be loaded.

    Raises:
      ValueError: As ``sources.make``, if a value is not allowed, or the data are missing and of unknown size.

    >>> make_or_assume("imagenet2012", image_size=224, dir="").info.num_train
    1281167
    """
    options = sources.SOURCES.check({**kwargs, "name": name})
    try:
        return sources.make(name, **kwargs)
    except ValueError as error:
        info, note = _info(name, options)
        if info is None:
            raise
        message = f"data not at hand ({error}); {note}"

    def load(seed: int) -> Dataset:
        raise ValueError(message)

    if name == "text":
        found = sources.source_of(info, load, placement=options["placement"], evaluate_on=options["evaluate_on"])
    else:
        found = sources.source_of_images(info, load, options)
    return found._replace(note=message)


def _info(name: str, options: dict[str, Any]) -> tuple[Info | None, str]:
    if is_component(name):
        return None, ""
    if name == "text":
        return _text(**options), f"{NUM_SEQUENCES:,} sequences are assumed"
    shape, *rest = IMAGE_SETS.get(name, (None, 0, 0, 0))
    size = options["image_size"]
    shape = (size, size, 3) if size else shape
    if shape is None or not rest[0]:
        return None, ""
    return decoded.describe(shape, *rest), "its sizes are known"


def _text(*, sequence_length: int, form: str, tokenizer: str, vocab_size: int, **unused: Any) -> Info:
    del unused  # keys of the config that do not change the shapes

    def column(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    example = {"tokens": column(np.int32, sequence_length + (form == "causal"))}
    if form == "masked":
        example |= {"segments": column(np.int8, sequence_length), "words": column(np.int16, sequence_length)}
        example |= {"is_next": column(np.int32)}
    vocab_size = tokenizers.Bytes.vocab_size if tokenizer == "bytes" else vocab_size
    return Info(example, tokenizers.sizes_of(vocab_size), NUM_SEQUENCES, NUM_SEQUENCES // 100, constants={})
