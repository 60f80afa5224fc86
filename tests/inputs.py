"""Columns of examples, and the description of a data set that ``tasks.make`` takes."""

from typing import Any

import jax
import numpy as np

from data.texts.tokenizers import SPECIAL


def images(shape: tuple[int, ...], *, num_classes: int) -> dict[str, Any]:
    """Images [H, W, C] with one label each, normalised."""
    parts = {"image": jax.ShapeDtypeStruct(shape, np.float32), "label": jax.ShapeDtypeStruct((), np.int32)}
    return {"example": parts, "sizes": {"num_classes": num_classes}}


def assert_of(columns, example):
    """Columns hold examples as they are described."""
    found = {name: (column.shape[1:], column.dtype) for name, column in columns.items()}
    assert found == {name: (part.shape, part.dtype) for name, part in example.items()}


def assert_same(one, other):
    """Columns are the same, with their types."""
    assert one.keys() == other.keys()
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name], strict=True)


def text_of(ids):
    """The text of tokens that are bytes; special tokens have none."""
    return bytes(number - len(SPECIAL) for number in ids.tolist() if number >= len(SPECIAL)).decode()


def gather(examples, records, batch_index=0):
    """Returns one batch of these records."""
    return examples.gather(np.array([records]), np.array([batch_index]))
