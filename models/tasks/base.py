"""The interface between a train step and a model with its loss.

Losses and metrics are sums with a count, which makes reductions over workers and padded batches exact.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import optax
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
      best: The metric that selects the best checkpoint, and "max" or "min".
      chance: The value of that metric for a uniform distribution; None if it is unknown.

    Sums have "loss" and "count", whose quotient is the mean loss, and whatever else the metrics need.
    """

    init: Callable[[jax.Array], tuple[Any, Any]]
    loss: Callable[..., tuple[jax.Array, tuple[Sums, Any]]]
    evaluate: Callable[..., Sums]
    metrics: Callable[[Mapping[str, Any]], dict[str, Any]]
    best: tuple[str, Literal["max", "min"]]
    chance: float | None = None


class MisfitError(ValueError):
    """A task cannot train this model."""


# Cached, so that a model is traced only once for its shapes.
@functools.partial(jax.jit, static_argnums=0, static_argnames="output")
def initialise(model: nn.Module, key: jax.Array, *inputs: jax.Array, output: Any = None) -> tuple[Any, Any]:
    """Returns a model's initial parameters and its other collections.

    Args:
      model: The model.
      key: A random key.
      inputs: Inputs of the model.
      output: The shape that the task needs, or a tuple of shapes for several outputs; None for any.

    Raises:
      MisfitError: If the model does not take these inputs, or its output has another shape.
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


def sums_of_predictions(logits: jax.Array, target: jax.Array, weight: jax.Array) -> Sums:
    """Returns "loss", "correct" and "count" of classes [...] predicted by logits [..., C], weighted and summed."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, target)
    correct = (logits.argmax(-1) == target).astype(loss.dtype)
    each = {"loss": loss, "correct": correct, "count": jnp.ones_like(loss)}
    return {name: (weight * x).sum() for name, x in each.items()}


def train(model: nn.Module, params: Any, model_state: Any, key: jax.Array, *inputs: jax.Array) -> tuple[Any, Any]:
    """Returns a model's outputs in training, with dropout from the key, and its updated other collections."""
    variables = {"params": params, **model_state}
    return model.apply(variables, *inputs, deterministic=False, rngs={"dropout": key}, mutable=list(model_state))


def predict(model: nn.Module, params: Any, model_state: Any, *inputs: jax.Array) -> Any:
    """Returns a model's outputs in evaluation."""
    return model.apply({"params": params, **model_state}, *inputs, deterministic=True)
