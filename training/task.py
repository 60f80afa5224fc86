"""The data and the task that a config names, before anything is read: what is needed to know a model's parameters."""

from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

import data.sources
import models
from data import checking
from data.sources import Source
from models import tasks
from optim import frozen
from runs.errors import ConfigError, in_block
from training import own_parts
from training.train_setup import example_inputs


def open_source(config: ConfigDict, *, open_data: Callable[..., Source] = data.sources.make) -> Source:
    """Finds the data of a config, and reads none of them.

    Args:
      config: complete and valid.
      open_data: builds the source from ``config.data``; ``data.assumed.make_or_assume`` where nothing will be read.

    Raises:
      ConfigError: one line with the key, the value and what is allowed.
    """
    with in_block("data"):
        source = open_data(**config.data)
        checking.check_info(source.info)
        return source


def make_task(config: ConfigDict, *, source: Source) -> tasks.Task:
    """Returns the model of a config joined with its loss; uses no device.

    Raises:
      ConfigError: one line with the key, the value and what is allowed.
    """
    with in_block("model"):
        model = models.make(**config.model, sizes=source.info.sizes)
    with in_block("task"):
        return tasks.make(**config.task, model=model, example=example_inputs(source.info), sizes=source.info.sizes)


def trained_shapes(config: ConfigDict, task: tasks.Task) -> Any:
    """Returns the shapes of the parameters that a run trains, which are not frozen; raises as ``init_shapes``."""
    shapes = init_shapes(config, task)
    try:
        return frozen.split(shapes, config.freeze)[0]
    except ValueError as error:
        raise ConfigError(f"config.freeze={error}") from None


def init_shapes(config: ConfigDict, task: tasks.Task) -> Any:
    """Returns the shapes of a model's parameters; raises ConfigError if the task cannot train it."""
    with own_parts.refusing(config, of="task"), own_parts.refusing(config, of="model"), in_block("model"):
        try:
            return jax.eval_shape(task.init, jax.random.key(0))[0]
        except tasks.MisfitError as error:
            where = f"name={config.model.name!r}: does not suit config.task.name={config.task.name!r}"
            raise ValueError(f"{where}: {error}") from None
