"""Masks tokens that a masked language model has to predict, at random and on the device."""

from typing import Literal, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from models.tasks.base import Batch

MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1  # shares of the chosen tokens; the rest stay unchanged

Unit = Literal["token", "word"]


class Masked(NamedTuple):
    """Sequences with tokens to predict: P slots each, used ones first and in order of position.

    Attributes:
      inputs: [B, T] int32, the masked tokens.
      positions: [B, P] int32, positions of the tokens to predict; 0 in unused slots.
      targets: [B, P] int32, the original tokens; 0 in unused slots.
      weights: [B, P] float32, 1 for used slots and 0 for others.
    """

    inputs: jax.Array
    positions: jax.Array
    targets: jax.Array
    weights: jax.Array


def mask(
    keys: jax.Array,
    batch: Batch,
    *,
    mask_id: int,
    vocab_size: int,
    num_special: int,
    rate: float,
    max_predictions: int,
    unit: Unit,
) -> Masked:
    r"""Masks each sequence of a batch with its own key.

    A sequence with :math:`n` maskable tokens gets

    .. math:: \min(P, \max(1, \text{round}(r n)))

    chosen tokens: 80 % of them become [MASK], 10 % a random token that is not special, and 10 % stay. With whole words,
    words are chosen in random order with all their tokens; a word that would exceed that number is skipped, so fewer
    tokens may be chosen.

    Args:
      keys: [B], one random key for each sequence.
      batch: "tokens" [B, T], and "words" [B, T] with the index of each token's word in its sequence, 0 to T - 1; -1
        where a token must not be chosen.
      mask_id: The token [MASK].
      vocab_size: Number of tokens.
      num_special: Number of special tokens, which come first.
      rate: Share r.
      max_predictions: Maximal number P, at most T.
      unit: Choose a single "token", or all tokens of a "word".

    >>> batch = {"tokens": jnp.array([[2, 7, 8, 9, 3, 0]]), "words": jnp.array([[-1, 0, 1, 1, -1, -1]])}
    >>> options = {"mask_id": 4, "vocab_size": 10, "num_special": 5, "rate": 0.5, "max_predictions": 3, "unit": "token"}
    >>> masked = mask(jax.random.split(jax.random.key(0), 1), batch, **options)
    >>> masked.weights.tolist(), bool((masked.positions > 0)[0, :2].all())
    ([[1.0, 1.0, 0.0]], True)

    Reference: Devlin et al., arXiv 1810.04805, section 3.1; google-research/bert, create_pretraining_data.py.
    Differs from the authors' code in: masks are drawn anew each time, not once for all passes; [CLS] and [SEP] do not
    count towards n; a random token is never a special one.
    """
    time = batch["tokens"].shape[1]
    numbers = [0, *(min(max_predictions, max(1, round(rate * n))) for n in range(1, time + 1))]  # Python's rounding
    places = min(max_predictions, time)

    def one(key, tokens, words):
        # One random array for all choices: separate ones compile, and run, several times longer.
        drawn = jax.random.uniform(key, (time + 2 * places,))
        share, token = drawn[time : time + places], drawn[time + places :]  # (P,) each
        maskable = words >= 0
        words = jnp.where(maskable, words if unit == "word" else jnp.arange(time), time)  # (T,)
        number = jnp.asarray(numbers)[maskable.sum()]
        chosen = _take(jnp.argsort(drawn[:time]), words, number) & maskable
        positions = jnp.argsort(~chosen)[:places]  # stable, so in order
        used = chosen[positions]
        targets = jnp.where(used, tokens[positions], 0)

        random = num_special + (token * (vocab_size - num_special)).astype(jnp.int32)
        kept = jnp.where(share < MASKED_SHARE + RANDOM_SHARE, random, targets)
        seen = jnp.where(share < MASKED_SHARE, mask_id, kept)
        inputs = tokens.at[jnp.where(used, positions, time)].set(seen, mode="drop")
        return Masked(inputs, jnp.where(used, positions, 0), targets, used.astype(jnp.float32))

    return jax.vmap(one)(keys, batch["tokens"].astype(jnp.int32), batch["words"].astype(jnp.int32))


def _take(order: jax.Array, words: jax.Array, number: jax.Array) -> jax.Array:
    """Returns a mask of chosen tokens: takes words in the given order and skips those that would exceed ``number``.

    Each round takes the longest run of words that fits and skips the word after it. This gives the same result as going
    word by word, in a few rounds instead of T steps.

    Args:
      order: [T], all possible words, in the order of choice.
      words: [T], the word of each token, 0 to T - 1, or T for tokens of no word.
      number: Maximal number of tokens.

    Returns:
      [T] bool; undefined for tokens of no word.
    """
    time = len(words)
    length = jnp.zeros(time, jnp.int32).at[words].add(1, mode="drop")[order]  # (T,), 0 where there is no such word

    def fits(taken, left):
        return ~taken & (length > 0) & (length <= left)

    def another(state):
        taken, left = state
        lengths = jnp.where(fits(taken, left), length, 0)
        more = (lengths > 0) & (jnp.cumsum(lengths) <= left)
        return taken | more, left - jnp.where(more, lengths, 0).sum()

    taken, _ = lax.while_loop(lambda state: fits(*state).any(), another, (jnp.zeros(time, bool), number))
    return jnp.zeros(time, bool).at[order].set(taken)[jnp.minimum(words, time - 1)]


def example_keys(tokens: jax.Array) -> jax.Array:
    """Returns a random key [B] for each sequence that depends on its tokens [B, T] alone, for evaluation.

    >>> one, other, same = jax.random.key_data(example_keys(jnp.array([[1, 2], [2, 1], [1, 2]])))
    >>> bool((one == same).all()), bool((one == other).all())
    (True, False)
    """
    prime = 0x01000193  # FNV's
    exponents = range(tokens.shape[1], 0, -1)
    powers = np.array([pow(prime, exponent, 2**32) for exponent in exponents], np.uint32)
    products = tokens.astype(jnp.uint32) * powers[None]
    hashed = products.sum(1, dtype=jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), hashed)
