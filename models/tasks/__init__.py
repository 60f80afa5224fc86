"""Tasks: a model joined with its loss and metrics."""

from collections.abc import Mapping

import jax
from flax import linen as nn

from models.tasks.base import Batch, MisfitError, Sums, Task
from models.tasks.causal_lm import causal_lm
from models.tasks.classification import classification
from models.tasks.density import density
from models.tasks.masked_lm import masked_lm
from reducers.registry import Registry

__all__ = [
    "TASKS",
    "Batch",
    "MisfitError",
    "Sums",
    "Task",
    "causal_lm",
    "classification",
    "density",
    "make",
    "masked_lm",
]

TASKS = Registry(
    {
        "causal_lm": causal_lm,
        "classification": classification,
        "density": density,
        "masked_lm": masked_lm,
    },
    given={"model", "example", "sizes"},
    makes=Task,
)


def make(
    name: str, *, model: nn.Module, example: Mapping[str, jax.ShapeDtypeStruct], sizes: Mapping[str, int], **kwargs
) -> Task:
    """Builds the task called ``name``: ``make(model=..., example=..., sizes=..., **config.task)``.

    Args:
      name: Name of the task.
      model: The model to train.
      example: Shapes and types of one example as it reaches the task, without a batch axis.
      sizes: Sizes of the data, such as "num_classes" and "vocab_size".
      **kwargs: The config's further keys.

    Raises:
      ValueError: One line; the task does not suit the data.
    """
    return TASKS.make(name, model=model, example=example, sizes=sizes, **kwargs)
