"""The description of a data set that ``tasks.make`` takes."""

from typing import Any

import jax
import numpy as np


def images(shape: tuple[int, ...], *, num_classes: int) -> dict[str, Any]:
    """Images [H, W, C] with one label each, normalised."""
    parts = {"image": jax.ShapeDtypeStruct(shape, np.float32), "label": jax.ShapeDtypeStruct((), np.int32)}
    return {"example": parts, "sizes": {"num_classes": num_classes}}
