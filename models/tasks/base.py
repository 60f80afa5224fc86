"""The interface between a train step and a model with its loss.

Losses and metrics are sums with a count, so that reductions over workers and masked tails of a split are exact.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
from flax import linen as nn
from jax import numpy as jnp

Batch = dict[str, jax.Array]
Sums = dict[str, jax.Array]


class Task(NamedTuple):
    """A model joined with its loss and metrics.

    Attributes:
      init: ``key -> (params, model_state)``; model_state holds variables that the forward pass changes, such as
        BatchNorm's statistics.
      loss: ``(params, model_state, batch, key) -> (mean loss, (sums, model_state))``, for training.
      evaluate: ``(params, model_state, batch, weight) -> sums``, deterministic; weight [B] is 0 for padding.
      metrics: ``sums -> {"loss": ..., ...}`` for sums over any number of batches and workers; works on arrays in the
        step and on numbers on the host.
      best: The metric that selects the best checkpoint, and whether it is to be maximal or minimal.
      chance: The value of that metric without any knowledge: of a uniform distribution. None where it is not known.

    Sums hold "loss" and "count", the mean loss being their quotient, and whatever else the metrics need.
    """

    init: Callable[[jax.Array], tuple[Any, Any]]
    loss: Callable[..., tuple[jax.Array, tuple[Sums, Any]]]
    evaluate: Callable[..., Sums]
    metrics: Callable[[Mapping[str, Any]], dict[str, Any]]
    best: tuple[str, Literal["max", "min"]]
    chance: float | None = None


class MisfitError(ValueError):
    """A task cannot train this model."""


# A model is traced once, even if its shapes are needed often.
@functools.partial(jax.jit, static_argnums=0, static_argnames="output")
def begin(model: nn.Module, key: jax.Array, *inputs: jax.Array, output: Any = None) -> tuple[Any, Any]:
    """Returns a model's initial parameters and its other collections.

    Args:
      model: The model.
      key: A random key.
      inputs: Inputs of the model.
      output: The shape that the task needs of the output, or a tuple of the shapes of several; None for any.

    Raises:
      MisfitError: If the model does not take these inputs, or gives another output.
    """
    try:
        inspect.signature(type(model).__call__).bind(model, *inputs)
    except TypeError as error:
        raise MisfitError(f"{type(model).__name__} cannot take its inputs: {error}") from None
    found, variables = model.init_with_output(key, *inputs)
    if output is not None and (shape := jax.tree.map(jnp.shape, found)) != output:
        raise MisfitError(f"{type(model).__name__} returns {shape}, must be {output}")
    variables = dict(variables)
    return variables.pop("params"), variables


def train(model: nn.Module, params: Any, model_state: Any, key: jax.Array, *inputs: jax.Array) -> tuple[Any, Any]:
    """Returns a model's outputs in training, with dropout by the key, and its changed other collections."""
    variables = {"params": params, **model_state}
    return model.apply(variables, *inputs, deterministic=False, rngs={"dropout": key}, mutable=list(model_state))


def predict(model: nn.Module, params: Any, model_state: Any, *inputs: jax.Array) -> Any:
    """Returns a model's outputs in evaluation."""
    return model.apply({"params": params, **model_state}, *inputs, deterministic=True)
