"""Density estimation of images."""

import math
from collections.abc import Mapping

import jax
from flax import linen as nn
from jax import numpy as jnp

from models.likelihoods import LIKELIHOODS
from models.tasks.base import Task, initialise, predict, train


def density(*, model: nn.Module, example: Mapping[str, jax.ShapeDtypeStruct], sizes: Mapping[str, int]) -> Task:
    r"""Negative log-likelihood of images, per dimension.

    .. math:: \ell = - \frac{1}{H W C} \log p(x)

    Args:
      model: Maps images [B, H, W, C] uint8 to the outputs of the likelihood that its field ``likelihood`` names.
      example: "image" [H, W, C] uint8.
      sizes: Not used.

    Returns:
      A ``Task`` over batches ``{"image": [B, H, W, C] uint8}``; metrics are loss, in nats per dimension, and
      bits_per_dim, loss / ln 2. A dimension is one channel of one pixel.

    Raises:
      ValueError: If the images are not raw bytes, or the model has no likelihood.
    """
    del sizes
    likelihood = LIKELIHOODS.get(getattr(model, "likelihood", ""))
    if likelihood is None:
        raise ValueError("name='density': needs a model with a likelihood: config.model.name='pixelcnn'")
    if "image" not in example or example["image"].dtype != jnp.uint8:
        raise ValueError("name='density': needs raw images: config.data.normalise='none'")
    shape = example["image"].shape
    log_prob = likelihood.log_prob

    def init(key):
        return initialise(model, key, jnp.zeros((1, *shape), jnp.uint8))

    def sums_of(outputs, batch, weight):
        nats = -log_prob(outputs, batch["image"])  # (B,)
        return {"loss": (weight * nats).sum(), "count": weight.sum() * math.prod(shape)}

    def loss(params, model_state, batch, key):
        outputs, changed = train(model, params, model_state, key, batch["image"])
        sums = sums_of(outputs, batch, jnp.ones(len(batch["image"]), jnp.float32))
        return sums["loss"] / sums["count"], (sums, changed)

    def evaluate(params, model_state, batch, weight):
        return sums_of(predict(model, params, model_state, batch["image"]), batch, weight)

    def metrics(sums):
        mean = sums["loss"] / sums["count"]
        return {"loss": mean, "bits_per_dim": mean / math.log(2)}

    return Task(init, loss, evaluate, metrics, ("bits_per_dim", "min"), chance=8.0)  # of 256 values
