"""The data and the task that a config names, before anything is read: they determine a model's parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

import models
from data import checking
from data.augment import as_inputs
from data.examples import Info
from data.sources import Source
from models import tasks
from optim import frozen
from reducers.leaves import leaf_names
from runs.errors import ConfigError, in_block
from training import own_parts


def open_source(config: ConfigDict, *, open_data: Callable[..., Source]) -> Source:
    """Locates the data of a config; reads none of them.

    Args:
      config: the config, complete and valid.
      open_data: builds the source from ``config.data``: ``data.sources.make``, or ``data.assumed.make_or_assume`` if
        nothing will be read.

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
        inputs = batch_inputs(source.info, 1)
        example = {name: jax.ShapeDtypeStruct(part.shape[1:], part.dtype) for name, part in inputs.items()}
        return tasks.make(**config.task, model=model, example=example, sizes=source.info.sizes)


def trained_shapes(config: ConfigDict, task: tasks.Task) -> Any:
    """Returns the shapes of the parameters that a run trains, without the frozen ones.

    Raises:
      ConfigError: as in ``init_shapes``, and if ``config.freeze`` or ``config.init_only`` matches no parameter.
    """
    shapes = init_shapes(config, task)
    check_init(config, leaf_names(shapes))
    try:
        return frozen.split(shapes, config.freeze)[0]
    except ValueError as error:
        raise ConfigError(f"config.freeze={error}") from None


def check_init(config: ConfigDict, names: Sequence[str]) -> None:
    """Raises ConfigError if ``config.init_what`` and ``init_only`` select nothing from ``config.init_from``."""
    for key, default in (("init_what", "params"), ("init_only", "")):
        if config[key] != default and not config.init_from:
            raise ConfigError(f"config.{key}={config[key]!r}: needs config.init_from, the folder of another run")
    if config.init_only and config.init_what == "shared":
        raise ConfigError(f"config.init_only={config.init_only!r}: must be '' where config.init_what='shared'")
    try:
        frozen.matching(names, config.init_only)
    except ValueError as error:
        raise ConfigError(f"config.init_only={error}") from None


def init_shapes(config: ConfigDict, task: tasks.Task) -> Any:
    """Returns the shapes of a model's parameters; raises ConfigError if the task cannot train it."""
    with own_parts.refusing(config, of="task"), own_parts.refusing(config, of="model"), in_block("model"):
        try:
            return jax.eval_shape(task.init, jax.random.key(0))[0]
        except tasks.MisfitError as error:
            where = f"name={config.model.name!r}: does not suit config.task.name={config.task.name!r}"
            raise ValueError(f"{where}: {error}") from None


def batch_inputs(info: Info, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a batch as the task receives it."""
    return jax.eval_shape(as_inputs, info.batch(batch_size), info.constants)
