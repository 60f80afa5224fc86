"""What a train step needs to know of a model and its loss.

Losses and metrics are sums with their count, so that any reduction over workers and any masked tail is exact.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
from flax import linen as nn

Batch = dict[str, jax.Array]
Sums = dict[str, jax.Array]


class Task(NamedTuple):
    """A model joined with its loss and metrics.

    Attributes:
      init: ``key -> (params, model_state)``; model_state holds what the forward pass changes (BatchNorm statistics).
      loss: ``(params, model_state, batch, key) -> (mean loss, (sums, model_state))``, for training.
      evaluate: ``(params, model_state, batch, weight) -> sums``, deterministic; weight [B] is 0 for padding.
      metrics: ``sums -> {"loss": ..., ...}``, what sums over any number of batches and workers come to; the same on
        arrays in the step and on numbers on the host.
      best: the metric by which a checkpoint is the best, and whether more or less of it is better.

    Sums hold "loss" and "count", by which the mean loss is taken, and what else the metrics need.
    """

    init: Callable[[jax.Array], tuple[Any, Any]]
    loss: Callable[..., tuple[jax.Array, tuple[Sums, Any]]]
    evaluate: Callable[..., Sums]
    metrics: Callable[[Mapping[str, Any]], dict[str, Any]]
    best: tuple[str, Literal["max", "min"]]


@functools.partial(jax.jit, static_argnums=0)  # a model is traced once, however often its shapes are asked for
def begin(model: nn.Module, key: jax.Array, *inputs: jax.Array) -> tuple[Any, Any]:
    """Returns a model's first parameters, and its other collections."""
    variables = dict(model.init(key, *inputs))
    return variables.pop("params"), variables


def train(model: nn.Module, params: Any, model_state: Any, key: jax.Array, *inputs: jax.Array) -> tuple[Any, Any]:
    """Returns a model's outputs in training, with units dropped by the key, and its other collections after it."""
    variables = {"params": params, **model_state}
    return apply(model, variables, *inputs, deterministic=False, rngs={"dropout": key}, mutable=list(model_state))


def predict(model: nn.Module, params: Any, model_state: Any, *inputs: jax.Array) -> Any:
    """Returns a model's outputs in evaluation."""
    return apply(model, {"params": params, **model_state}, *inputs, deterministic=True)


def apply(model: nn.Module, *args, **kwargs) -> Any:
    """Returns ``model.apply(...)``, whose type depends on ``mutable``."""
    return model.apply(*args, **kwargs)
