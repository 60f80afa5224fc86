"""Which tokens a masked language model has to predict: drawn anew for each batch, on the device."""

from typing import Literal, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from models.tasks.base import Batch

MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1  # of the chosen tokens; the rest stay as they are

Unit = Literal["token", "word"]


class Masked(NamedTuple):
    """Batches with tokens to be predicted; P slots a sequence, those in use first and in order of position.

    Attributes:
      inputs: [B, T] int32, tokens as the model sees them.
      positions: [B, P] int32, places of the tokens to be predicted; 0 in unused slots.
      targets: [B, P] int32, what stood there; 0 in unused slots.
      weights: [B, P] float32, 1 for slots in use and 0 for others.
    """

    inputs: jax.Array
    positions: jax.Array
    targets: jax.Array
    weights: jax.Array


def mask(key: jax.Array, batch: Batch, **options) -> Masked:
    """Masks each sequence of a batch by its share of one key.

    >>> tokens, words = jnp.array([[2, 7, 8, 9, 3, 0]]), jnp.array([[-1, 0, 1, 1, -1, -1]])
    >>> batch, sizes = {"tokens": tokens, "words": words}, {"mask_id": 4, "vocab_size": 10, "num_special": 5}
    >>> masked = jax.jit(lambda key: mask(key, batch, **sizes, rate=0.5, max_predictions=3))(jax.random.key(0))
    >>> masked.weights.tolist(), bool((masked.positions > 0)[0, :2].all())
    ([[1.0, 1.0, 0.0]], True)

    Args:
      key: of all random choices.
      batch: as of ``mask_each``.
      **options: as of ``mask_each``.
    """
    return mask_each(jax.random.split(key, len(batch["tokens"])), batch, **options)


def mask_each(
    keys: jax.Array,
    batch: Batch,
    *,
    mask_id: int,
    vocab_size: int,
    num_special: int,
    rate: float = 0.15,
    max_predictions: int = 20,
    unit: Unit = "token",
) -> Masked:
    r"""Masks each sequence of a batch by a key of its own.

    Of a sequence's :math:`n` maskable tokens

    .. math:: \min(P, \max(1, \text{round}(r n)))

    are chosen; 80 % of them become [MASK], 10 % a random token that is not special, 10 % stay. Whole words are taken
    in random order, all tokens of one; a word that would exceed that number is passed over, so there may be fewer.

    Args:
      keys: [B], of all random choices for each sequence.
      batch: "tokens" [B, T], and "words" [B, T] with the word of its sequence that a token belongs to, 0 to T - 1; -1
        where it must not be chosen.
      mask_id: the token [MASK].
      vocab_size: tokens there are.
      num_special: the first of them, which are no words.
      rate: r.
      max_predictions: P; T where that is less.
      unit: what is chosen: "token", or all tokens of a "word".

    Reference: Devlin et al., arXiv 1810.04805, section 3.1; google-research/bert, create_pretraining_data.py.
    Differs from the authors' code in: masks are drawn anew each time, not once for all passes; [CLS] and [SEP] do not
    count to n; a random token is never a special one.
    """
    time = batch["tokens"].shape[1]
    numbers = [0, *(min(max_predictions, max(1, round(rate * n))) for n in range(1, time + 1))]  # by Python's rounding
    places = min(max_predictions, time)

    def one(key: jax.Array, tokens: jax.Array, words: jax.Array) -> Masked:
        # One draw for all choices: a draw each compiles, and runs, several times longer.
        drawn = jax.random.uniform(key, (time + 2 * places,))
        share, which = drawn[time : time + places], drawn[time + places :]  # (P,) each
        maskable = words >= 0
        words = jnp.where(maskable, words if unit == "word" else jnp.arange(time), time)  # (T,)
        number = jnp.asarray(numbers)[maskable.sum()]
        chosen = _take(jnp.argsort(drawn[:time]), words, number) & maskable
        positions = jnp.argsort(~chosen)[:places]  # stable, so in order
        used = chosen[positions]
        targets = jnp.where(used, tokens[positions], 0)

        random = num_special + (which * (vocab_size - num_special)).astype(jnp.int32)
        kept = jnp.where(share < MASKED_SHARE + RANDOM_SHARE, random, targets)
        seen = jnp.where(share < MASKED_SHARE, mask_id, kept)
        inputs = tokens.at[jnp.where(used, positions, time)].set(seen, mode="drop")
        return Masked(inputs, jnp.where(used, positions, 0), targets, used.astype(jnp.float32))

    return jax.vmap(one)(keys, batch["tokens"].astype(jnp.int32), batch["words"].astype(jnp.int32))


def _take(order: jax.Array, words: jax.Array, number: jax.Array) -> jax.Array:
    """Tells of each token whether its word is taken: words in some order, each that does not exceed ``number``.

    A round takes the longest run of words that fits, and passes over the word that ends it; so it does what going word
    by word does, in a few rounds, where that needs T steps.

    Args:
      order: [T], all words there may be.
      words: [T], 0 to T - 1, or T for tokens of no word.
      number: most tokens to take.

    Returns:
      [T] bool; anything for tokens of no word.
    """
    time = len(words)
    length = jnp.zeros(time, jnp.int32).at[words].add(1, mode="drop")[order]  # (T,), 0 where there is no such word

    def fits(taken: jax.Array, left: jax.Array) -> jax.Array:
        return ~taken & (length > 0) & (length <= left)

    def another(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        taken, left = state
        lengths = jnp.where(fits(taken, left), length, 0)
        more = (lengths > 0) & (jnp.cumsum(lengths) <= left)
        return taken | more, left - jnp.where(more, lengths, 0).sum()

    taken, _ = lax.while_loop(lambda state: fits(*state).any(), another, (jnp.zeros(time, bool), number))
    return jnp.zeros(time, bool).at[order].set(taken)[jnp.minimum(words, time - 1)]


def example_keys(tokens: jax.Array) -> jax.Array:
    """Returns a key [B] for each sequence, which depends on its own tokens [B, T] alone: for evaluation.

    >>> one, other, same = jax.random.key_data(example_keys(jnp.array([[1, 2], [2, 1], [1, 2]])))
    >>> bool((one == same).all()), bool((one == other).all())
    (True, False)
    """
    powers = [pow(0x01000193, tokens.shape[1] - i, 2**32) for i in range(tokens.shape[1])]  # FNV's prime
    hashed = (tokens.astype(jnp.uint32) * np.array(powers, np.uint32)[None]).sum(1, dtype=jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), hashed)
