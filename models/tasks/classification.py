"""Image classification."""

from collections.abc import Mapping

import jax
import optax
from flax import linen as nn
from jax import numpy as jnp

from models.tasks.base import Task, initialise, predict, train
from reducers.options import Fraction, NonNegative


def classification(
    *,
    model: nn.Module,
    example: Mapping[str, jax.ShapeDtypeStruct],
    sizes: Mapping[str, int],
    label_smoothing: Fraction = 0.0,
    auxiliary_weight: NonNegative = 0.4,
) -> Task:
    r"""Softmax cross-entropy over C classes.

    .. math:: \ell = - \sum_c ((1 - s) [c = y] + s / C) \log p_c

    If the model returns (logits, auxiliary logits) in training, the auxiliary loss is added with a weight; metrics use
    the main logits alone.

    Args:
      model: Maps images [B, H, W, D] to logits [B, C], or in training to (logits, auxiliary logits).
      example: "image" [H, W, D] float32 and "label" [] int32.
      sizes: "num_classes", C.
      label_smoothing: Smoothing s, in training only; evaluation reports the unsmoothed loss.
      auxiliary_weight: Weight of the auxiliary head's loss.

    Returns:
      A ``Task`` over batches ``{"image": [B, H, W, D] float32, "label": [B] int32}``; metrics are loss, accuracy and,
      for more than 10 classes, top_5_accuracy.

    Raises:
      ValueError: If the data are not images with labels.
    """
    if not {"image", "label"} <= example.keys():
        raise ValueError("name='classification': needs data of images with labels")
    label = example["label"]
    if label.shape != () or not jnp.issubdtype(label.dtype, jnp.integer):
        raise ValueError(
            f"name='classification': labels are {label.dtype} of shape {label.shape}, must be integers of ()"
        )
    if "num_classes" not in sizes:
        raise ValueError("name='classification': needs num_classes among the sizes of the data")
    image = example["image"]
    num_classes = sizes["num_classes"]
    ranked = num_classes > 10

    def init(key):
        return initialise(model, key, jnp.zeros((1, *image.shape), image.dtype), output=(1, num_classes))

    def cross_entropy(logits, batch, smoothing):
        target = optax.smooth_labels(jax.nn.one_hot(batch["label"], logits.shape[-1]), smoothing)  # (B, C)
        return optax.softmax_cross_entropy(logits.astype(jnp.float32), target)  # (B,)

    def sums_of(logits, batch, weight, smoothing):
        label = batch["label"]
        total = {"loss": cross_entropy(logits, batch, smoothing)}
        total["correct"] = (logits.argmax(-1) == label).astype(jnp.float32)
        if ranked:
            total["correct_5"] = (jax.lax.top_k(logits, 5)[1] == label[:, None]).any(-1).astype(jnp.float32)
        return {**{name: (weight * x).sum() for name, x in total.items()}, "count": weight.sum()}

    def loss(params, model_state, batch, key):
        outputs, changed = train(model, params, model_state, key, batch["image"])
        logits, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
        sums = sums_of(logits, batch, jnp.ones(batch["label"].shape, jnp.float32), label_smoothing)
        mean = sums["loss"] / sums["count"]
        for head in auxiliary:
            mean += auxiliary_weight * cross_entropy(head, batch, label_smoothing).mean()
        return mean, (sums, changed)

    def evaluate(params, model_state, batch, weight):
        return sums_of(predict(model, params, model_state, batch["image"]), batch, weight, 0.0)

    def metrics(sums):
        names = {"loss": "loss", "accuracy": "correct", **({"top_5_accuracy": "correct_5"} if ranked else {})}
        return {name: sums[total] / sums["count"] for name, total in names.items()}

    return Task(init, loss, evaluate, metrics, ("accuracy", "max"), chance=1 / num_classes)
