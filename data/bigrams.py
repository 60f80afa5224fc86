"""The bigram model: the simplest that a language model has to beat."""

import numpy as np

from data.tokenizers import PAD


def bigram_perplexity(train_tokens: np.ndarray, test_tokens: np.ndarray, *, vocab_size: int, smoothing: float) -> float:
    r"""Returns the perplexity, on test tokens, of a bigram model with add-k smoothing.

    .. math:: p(b \mid a) = \frac{n_{ab} + k}{n_a + k V}, \qquad
        \mathrm{PP} = \exp\Big(-\frac{1}{M} \sum_{i=1}^{M} \log p(b_i \mid a_i)\Big)

    Args:
      train_tokens: [..., T + 1] of int, in [0, V): each token along the last axis is predicted from the one before it,
        as in the sequences of ``packing.causal``; where it is [PAD], it is not.
      test_tokens: likewise.
      vocab_size: V.
      smoothing: k > 0, in pairs; best chosen on validation texts.

    Returns:
      The perplexity per token, at least 1: comparable with exp of a causal model's mean loss on the same sequences.

    >>> bigram_perplexity(np.array([5, 6, 5, 6]), np.array([5, 6]), vocab_size=7, smoothing=0.5)  # (2 + 3.5) / 2.5
    2.2
    """
    pairs, counts = np.unique(_pairs(train_tokens, vocab_size), return_counts=True)
    totals = np.bincount(pairs // vocab_size, weights=counts, minlength=vocab_size)
    asked = _pairs(test_tokens, vocab_size)
    place = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    found = np.where(pairs[place] == asked, counts[place], 0)
    probability = (found + smoothing) / (totals[asked // vocab_size] + smoothing * vocab_size)
    return float(np.exp(-np.log(probability).mean()))


def _pairs(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Returns a V + b for each pair of neighbours, [M] int64."""
    a, b = tokens[..., :-1].astype(np.int64).ravel(), tokens[..., 1:].astype(np.int64).ravel()
    return (a * vocab_size + b)[b != PAD]
