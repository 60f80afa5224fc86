"""Causal language modelling: predicting the next token."""

from collections.abc import Mapping

import jax
import numpy as np
from flax import linen as nn
from jax import numpy as jnp

from models.layers import attention, batch_parts
from models.tasks.base import Task, initialise, predict, sums_of_predictions, train
from reducers.gram.scales import nonzero


def causal_lm(*, model: nn.Module, example: Mapping[str, jax.ShapeDtypeStruct], sizes: Mapping[str, int]) -> Task:
    r"""Softmax cross-entropy of each token given those before it, in nats per token.

    .. math:: \ell = - \frac{1}{T} \sum_t \log p(x_{t+1} | x_1, \ldots, x_t), \quad \text{perplexity} = e^\ell

    Padding is not predicted.

    Args:
      model: Maps tokens [B, T] to logits [B, T, V].
      example: "tokens" [T + 1] int32 and nothing else.
      sizes: "vocab_size", V.

    Returns:
      A ``Task`` over batches ``{"tokens": [B, T + 1] int32}``; sums count predicted tokens, and metrics are loss,
      perplexity and accuracy.

    Raises:
      ValueError: If the data are not sequences of at least two tokens.
    """
    if example.keys() != {"tokens"} or "vocab_size" not in sizes or example["tokens"].size < 2:
        raise ValueError("name='causal_lm': needs data of running text, at least 2 tokens an example")
    if example["tokens"].ndim != 1 or not jnp.issubdtype(example["tokens"].dtype, jnp.integer):
        raise ValueError("name='causal_lm': tokens must be integers [T + 1] of an example")

    def init(key):
        tokens = jnp.zeros((1, example["tokens"].size - 1), jnp.int32)
        return initialise(model, key, tokens, output=(*tokens.shape, sizes["vocab_size"]))

    def sums_of(logits, target, weight):
        counted = jnp.where(target == attention.PAD, 0, weight[:, None])  # (B, T)
        return sums_of_predictions(logits.astype(jnp.float32), target, counted)

    def loss(params, model_state, batch, key):
        tokens = batch["tokens"]
        logits, changed = train(model, params, model_state, key, tokens[:, :-1])
        sums = sums_of(logits, tokens[:, 1:], jnp.ones(len(tokens), jnp.float32))
        return sums["loss"] / nonzero(batch_parts.mean(sums["count"])), (sums, changed)  # 0 for a batch of padding only

    def evaluate(params, model_state, batch, weight):
        tokens = batch["tokens"]
        return sums_of(predict(model, params, model_state, tokens[:, :-1]), tokens[:, 1:], weight)

    def metrics(sums):
        mean = sums["loss"] / sums["count"]
        # On the host NumPy computes it, without a device; exp(709) is near the maximum of float64.
        perplexity = jnp.exp(mean) if isinstance(mean, jax.Array) else np.exp(np.minimum(mean, 709.0))
        return {"loss": mean, "perplexity": perplexity, "accuracy": sums["correct"] / sums["count"]}

    return Task(init, loss, evaluate, metrics, ("perplexity", "min"), chance=float(sizes["vocab_size"]))
