"""BERT's two tasks: predicting masked tokens, and whether the second segment follows the first."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
from flax import linen as nn
from jax import numpy as jnp

from models.layers import batch_parts
from models.tasks import masking
from models.tasks.base import Task, initialise, predict, sums_of_predictions, train
from reducers.gram.scales import nonzero
from reducers.options import Count


def masked_lm(
    *,
    model: nn.Module,
    example: Mapping[str, jax.ShapeDtypeStruct],
    sizes: Mapping[str, int],
    rate: Annotated[float, "(0, 1]"] = 0.15,
    max_predictions: Count = 20,
    unit: Literal["token", "word"] = "token",
    next_sentence: Literal["on", "off"] = "on",
) -> Task:
    r"""Mean cross-entropy of masked tokens plus the mean cross-entropy of the next-sentence prediction.

    .. math:: \ell = - \frac{1}{M} \sum_{m} \log p(x_m) - \frac{1}{B} \sum_b \log q(s_b)

    Training draws new masks at each step with the step's key. Evaluation masks each example with a key made from its
    tokens, so its masks are always the same, whatever else is in the batch.

    The two means have different counts. "loss" and "count" in the sums are those of masked tokens, and the next
    sentence has separate sums. So each part is exact for any split over batches and workers, and the metric "loss" is
    the sum of the two means.

    Args:
      model: Maps tokens [B, T], segments [B, T] and positions [B, P] to logits [B, P, V] and [B, 2].
      example: "tokens" [T] int32, "segments" [T] and "words" [T], and "is_next" [] for the next sentence.
      sizes: "vocab_size", "mask_id" and "num_special".
      rate: Share of the maskable tokens to predict.
      max_predictions: Maximal number P of predictions in a sequence.
      unit: Unit of masking: a "token", or all tokens of a "word".
      next_sentence: "off" leaves its loss out; its head then keeps its initial values.

    Returns:
      A ``Task`` over batches ``{"tokens": [B, T], "segments": [B, T], "words": [B, T], "is_next": [B]}``; metrics are
      loss, masked_lm_loss and masked_lm_accuracy, and next_sentence_loss and next_sentence_accuracy if it is on.

    Raises:
      ValueError: If the data are not text with words and segments, or have no next sentence to predict.

    Reference: Devlin et al., arXiv 1810.04805, section 3.1 and appendix A.
    """
    needed = {"tokens", "segments", "words", *(("is_next",) if next_sentence == "on" else ())}
    if missing := sorted(needed - example.keys()) or sorted({"vocab_size", "mask_id", "num_special"} - sizes.keys()):
        raise ValueError(f"name='masked_lm': needs data of masked text, these have no {', '.join(missing)}")
    options: dict[str, Any] = {"rate": rate, "max_predictions": max_predictions, "unit": unit}
    options |= {name: sizes[name] for name in ("mask_id", "vocab_size", "num_special")}

    def init(key):
        tokens = jnp.zeros((1, *example["tokens"].shape), jnp.int32)
        outputs = (1, 1, sizes["vocab_size"]), (1, 2)
        return initialise(model, key, tokens, tokens, jnp.zeros((1, 1), jnp.int32), output=outputs)

    def sums_of(outputs, masked, batch, weight):
        masked_logits, next_logits = (x.astype(jnp.float32) for x in outputs)
        sums = sums_of_predictions(masked_logits, masked.targets, masked.weights * weight[:, None])
        if next_sentence == "on":
            of_next = sums_of_predictions(next_logits, batch["is_next"], weight)
            sums |= {f"next_{name}": total for name, total in of_next.items()}
        return sums

    def loss(params, model_state, batch, key):
        mask_key, dropout_key = jax.random.split(key)
        keys = batch_parts.own(jax.random.split(mask_key, batch_parts.whole_size(len(batch["tokens"]))))
        masked = masking.mask(keys, batch, **options)
        inputs = masked.inputs, batch["segments"], masked.positions
        outputs, changed = train(model, params, model_state, dropout_key, *inputs)
        sums = sums_of(outputs, masked, batch, jnp.ones(len(batch["tokens"]), jnp.float32))
        mean = sums["loss"] / nonzero(batch_parts.mean(sums["count"]))  # 0 for a batch of padding only
        if next_sentence == "on":
            mean += sums["next_loss"] / sums["next_count"]
        return mean, (sums, changed)

    def evaluate(params, model_state, batch, weight):
        masked = masking.mask(masking.example_keys(batch["tokens"]), batch, **options)
        outputs = predict(model, params, model_state, masked.inputs, batch["segments"], masked.positions)
        return sums_of(outputs, masked, batch, weight)

    def metrics(sums):
        masked_loss = sums["loss"] / sums["count"]
        named = {"loss": masked_loss, "masked_lm_loss": masked_loss}
        named["masked_lm_accuracy"] = sums["correct"] / sums["count"]
        if next_sentence == "on":
            named["next_sentence_loss"] = sums["next_loss"] / sums["next_count"]
            named["next_sentence_accuracy"] = sums["next_correct"] / sums["next_count"]
            named["loss"] = masked_loss + named["next_sentence_loss"]
        return named

    return Task(init, loss, evaluate, metrics, ("masked_lm_loss", "min"), chance=math.log(sizes["vocab_size"]))
