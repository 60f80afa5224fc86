"""Tasks: a model joined with its loss and metrics."""

from models.tasks.base import MisfitError, Task
from models.tasks.causal_lm import causal_lm
from models.tasks.classification import classification
from models.tasks.density import density
from models.tasks.masked_lm import masked_lm
from reducers.registry import Registry

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


make = TASKS.make  # make(**config.task, model=..., example=..., sizes=...)
