"""A task joins a model with its loss and metrics.

Losses and metrics are sums with their count, so that any reduction over workers and any masked tail is exact.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import optax
from flax import linen as nn
from jax import numpy as jnp

from models import registry

Batch = dict[str, jax.Array]
Sums = dict[str, jax.Array]


class Task(NamedTuple):
    """What a train step needs to know of a model.

    Attributes:
      init: ``key -> (params, model_state)``; model_state holds what the forward pass changes (BatchNorm statistics).
      loss: ``(params, model_state, batch, key) -> (mean loss, (sums, model_state))``, for training.
      evaluate: ``(params, model_state, batch, weight) -> sums``, deterministic; weight [B] is 0 for padding.

    Sums hold "loss", "correct" and "count" over the examples of a batch.
    """

    init: Callable[[jax.Array], tuple[Any, Any]]
    loss: Callable[..., tuple[jax.Array, tuple[Sums, Any]]]
    evaluate: Callable[..., Sums]


def classification(
    *, model: nn.Module, image_shape: tuple[int, int, int], label_smoothing: Annotated[float, "[0, 1)"] = 0.0
) -> Task:
    r"""Softmax cross-entropy over C classes.

    .. math:: \ell = - \sum_c ((1 - s) [c = y] + s / C) \log p_c

    Args:
      model: maps images [B, H, W, D] to logits [B, C].
      image_shape: (H, W, D).
      label_smoothing: s, in training only; evaluation reports the unsmoothed loss.

    Returns:
      A ``Task`` over batches ``{"image": [B, H, W, D] float32, "label": [B] int32}``.
    """

    def init(key: jax.Array):
        variables = dict(model.init(key, jnp.zeros((1, *image_shape), jnp.float32)))
        return variables.pop("params"), variables

    def sums_of(logits: jax.Array, batch: Batch, weight: jax.Array, smoothing: float) -> Sums:
        target = optax.smooth_labels(jax.nn.one_hot(batch["label"], logits.shape[-1]), smoothing)  # (B, C)
        loss = optax.softmax_cross_entropy(logits.astype(jnp.float32), target)  # (B,)
        correct = (logits.argmax(-1) == batch["label"]).astype(jnp.float32)
        return {"loss": (weight * loss).sum(), "correct": (weight * correct).sum(), "count": weight.sum()}

    def loss(params, model_state, batch: Batch, key: jax.Array):
        variables, rngs = {"params": params, **model_state}, {"dropout": key}
        logits, changed = _apply(
            model, variables, batch["image"], deterministic=False, rngs=rngs, mutable=list(model_state)
        )
        sums = sums_of(logits, batch, jnp.ones(batch["label"].shape, jnp.float32), label_smoothing)
        return sums["loss"] / sums["count"], (sums, changed)

    def evaluate(params, model_state, batch: Batch, weight: jax.Array) -> Sums:
        logits = _apply(model, {"params": params, **model_state}, batch["image"], deterministic=True)
        return sums_of(logits, batch, weight, 0.0)

    return Task(init, loss, evaluate)


def _apply(model: nn.Module, *args, **kwargs) -> Any:
    return model.apply(*args, **kwargs)  # its type depends on `mutable`


TASKS: dict[str, Callable[..., Task]] = {"classification": classification}

# What the program supplies; every other parameter of a task is a config key.
GIVEN = frozenset({"model", "image_shape"})


def lookup(name: str) -> Callable[..., Task]:
    """Returns the task's constructor; its signature is the schema of a config's ``task`` block.

    Raises:
      ValueError: if no task has that name; says which there are.
    """
    return registry.find(TASKS, name)


def make(name: str, *, model: nn.Module, image_shape: tuple[int, int, int], **kwargs) -> Task:
    """Builds the task called ``name``: ``make(model=..., image_shape=..., **config.task)``."""
    return lookup(name)(model=model, image_shape=image_shape, **kwargs)
