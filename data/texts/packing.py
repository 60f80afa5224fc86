"""Packs the tokens of documents into sequences of one length."""

import itertools
from collections.abc import Callable

import numpy as np

from data.examples import Columns
from data.texts.tokenizers import CLS, PAD, SEP, Encoded


def causal(encoded: Encoded, *, sequence_length: int, split: str) -> Columns:
    """Cuts one stream of all documents, with [SEP] before, between and after them, into sequences of T + 1.

    The last token of a row is the first token of the next one. So each token of the stream, except its first [SEP], is
    predicted once; a row's first token only starts its context.

    Args:
      encoded: The documents.
      sequence_length: Number T of predictions in a row.
      split: "train" drops the last tokens if they do not fill a row, so that every row has T predictions; "test" pads
        them with [PAD], which is not predicted, so that the whole split is evaluated.

    Returns:
      {"tokens": [N, T + 1] int32}; N may be 0.

    >>> encoded = Encoded(np.array([7, 8, 9]), np.ones(3, bool), np.array([0, 2, 3]))
    >>> causal(encoded, sequence_length=2, split="test")["tokens"].tolist()
    [[3, 7, 8], [8, 3, 9], [9, 3, 0]]
    """
    stream = np.insert(encoded.ids, encoded.bounds, SEP)
    num_predictions = len(stream) - 1
    num_rows = num_predictions // sequence_length if split == "train" else -(-num_predictions // sequence_length)
    stream = np.pad(stream, (0, max(0, num_rows * sequence_length + 1 - len(stream))), constant_values=PAD)
    index = np.arange(num_rows)[:, None] * sequence_length + np.arange(sequence_length + 1)
    return {"tokens": stream[index]}


def full_sequences(encoded: Encoded, *, sequence_length: int) -> Columns:
    """Fills each row with text up to the last whole word that fits: ``[CLS] words [SEP]``, then [PAD].

    Text continues from row to row and from document to document, with a [SEP] between documents. Each token of the
    documents occurs once.

    Args:
      encoded: The documents.
      sequence_length: Length T of a row, at least 3.

    Returns:
      As for ``segment_pairs``, with all segments 0 and all is_next 1.

    Reference: Liu et al. 2019, RoBERTa, section 4.2, FULL-SENTENCES.
    Differs from the paper in: rows end with whole words, not with whole sentences.

    >>> encoded = Encoded(np.array([7, 8, 9]), np.array([True, True, False]), np.array([0, 3]))
    >>> packed = full_sequences(encoded, sequence_length=4)
    >>> packed["tokens"].tolist(), packed["words"].tolist()
    ([[2, 7, 3, 0], [2, 8, 9, 3]], [[-1, 0, -1, -1], [-1, 0, 0, -1]])
    """
    ends = encoded.bounds[1:]
    ids = np.insert(encoded.ids, ends, SEP)
    starts = np.insert(encoded.starts, ends, True)
    stop = len(ids) - 1 if len(ids) else 0  # the row adds the last [SEP] itself
    floor = _floor(starts)
    rows = []
    position = 0
    while position < stop:
        if ids[position] == SEP:  # the previous row ends with one already
            position += 1
            continue
        end = _cut(floor, position, position + sequence_length - 2, stop)
        rows.append((position, end - (ids[end - 1] == SEP), end, end))
        position = end
    return _assemble(ids, starts, rows, [1] * len(rows), sequence_length)


def segment_pairs(
    encoded: Encoded, *, sequence_length: int, seed: int, short_probability: float = 0.1, next_probability: float = 0.5
) -> Columns:
    """Makes rows of two segments: ``[CLS] A [SEP] B [SEP]``, then [PAD]; B follows A in its document or not.

    Each document is read once. A takes a random part of a row's T - 3 places. B takes the rest, either from where A
    ended or from a random place of another document (or far from A, if there is only one document); then reading
    continues after A. So each token occurs once, in A or in a B that follows, and some occur again in a random B.

    Args:
      encoded: The documents.
      sequence_length: Length T of a row, at least 5.
      seed: Seed of all random choices.
      short_probability: Probability of shortening a row to a random length, because real inputs are often short.
      next_probability: Probability that B follows A; if the document ends with A, B is random.

    Returns:
      {"tokens": [N, T] int32, "segments": [N, T] int8, 1 for B and its [SEP], else 0, "words": [N, T] int16, the index
      of each token's word in its row, -1 for special tokens and padding ([UNK] is a word), "is_next": [N] int32}.
      N is 0 if the documents have fewer than two tokens.

    Reference: Devlin et al. 2019, BERT, appendix A.2; create_pretraining_data.py of google-research/bert.
    Differs from that program in: segments end at words, not at sentences; random places are uniform over tokens, not
    over documents; nothing is masked, so nothing is written several times (``dupe_factor``).

    >>> encoded = Encoded(np.arange(5, 105), np.ones(100, bool), np.array([0, 50, 100]))
    >>> packed = segment_pairs(encoded, sequence_length=16, seed=0)
    >>> packed["tokens"].shape[1], int(packed["tokens"][0, 0]), sorted(set(packed["is_next"].tolist()))
    (16, 2, [0, 1])
    """
    draw = _random(seed)
    floor = _floor(encoded.starts)
    bounds = encoded.bounds.tolist()
    total = len(encoded.ids)
    single = len(bounds) == 2
    rows, is_next = [], []
    for position, stop in itertools.pairwise(bounds):
        lower, upper = position, stop  # a random B must not begin in [lower, upper)
        while position < stop:
            room = sequence_length - 3
            if draw(10**6) < short_probability * 10**6:
                room = 2 + draw(room - 1)
            longest = max(1, min(room, stop - position) - 1)
            middle = _cut(floor, position, position + 1 + draw(longest), stop)
            if single:
                lower = max(0, position - sequence_length)
                upper = min(total, middle + sequence_length)
            left = room - (middle - position)
            elsewhere = total - (upper - lower)
            follows = middle < stop and (not elsewhere or draw(10**6) < next_probability * 10**6)
            if follows:
                end = _cut(floor, middle, middle + left, stop)
                rows.append((position, middle, middle, end))
            elif elsewhere:
                start = draw(elsewhere)
                start = int(floor[start if start < lower else start + upper - lower])
                limit = bounds[int(np.searchsorted(encoded.bounds, start, side="right"))]
                rows.append((position, middle, start, _cut(floor, start, start + left, limit)))
            if follows or elsewhere:
                is_next.append(int(follows))
            position = end if follows else middle
    return _assemble(encoded.ids, encoded.starts, rows, is_next, sequence_length)


def _floor(starts: np.ndarray) -> np.ndarray:
    """Returns the index of the first token of each token's word, followed by S: [S + 1]."""
    index = np.arange(len(starts) + 1)
    return np.maximum.accumulate(np.where(np.append(starts, True), index, 0))


def _cut(floor: np.ndarray, start: int, end: int, stop: int) -> int:
    """Returns where a span from ``start`` ends: at the last word boundary up to ``end``, or at ``end`` if none follows
    ``start``; at ``stop`` if the text ends before ``end``.
    """
    if end >= stop:
        return stop
    whole = int(floor[end])
    return whole if whole > start else end


def _random(seed: int) -> Callable[[int], int]:
    """Returns n -> a random integer in [0, n), from Philox's words: NumPy guarantees only these for later versions."""
    philox = np.random.Philox(key=np.array([seed, 0], np.uint64))
    words: list[int] = []

    def draw(n: int) -> int:
        if not words:
            words.extend(philox.random_raw(4096).tolist()[::-1])
        return words.pop() % n

    return draw


def _assemble(ids: np.ndarray, starts: np.ndarray, rows: list, is_next: list[int], length: int) -> Columns:
    """Builds rows from spans (A's start, A's stop, B's start, B's stop); a row with an empty B has one [SEP]."""
    spans = np.array(rows, np.int64).reshape(-1, 4)
    a, b = spans[:, 1] - spans[:, 0], spans[:, 3] - spans[:, 2]  # [N] lengths
    row = np.arange(len(spans))
    tokens = np.full((len(spans), length), PAD, np.int32)
    begins = np.zeros(tokens.shape, bool)  # a word begins here
    for first, count, column in ((spans[:, 0], a, np.ones_like(a)), (spans[:, 2], b, a + 2)):
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        source, target = (np.repeat(at, count) + offset for at in (first, row * length + column))
        tokens.ravel()[target] = ids[source]
        begins.ravel()[target] = starts[source]
        begins.ravel()[(row * length + column)[count > 0]] = True  # the rest of a cut word counts as a word
    paired = b > 0
    tokens[row, 0], tokens[row, a + 1] = CLS, SEP
    tokens[row[paired], (a + b + 2)[paired]] = SEP
    in_b = np.arange(length) > (a + 1)[:, None]
    segments = in_b & (tokens != PAD)
    special = (tokens == PAD) | (tokens == CLS) | (tokens == SEP)
    words = np.where(special, -1, np.cumsum(begins & ~special, axis=1) - 1)
    return {
        "tokens": tokens,
        "segments": segments.astype(np.int8),
        "words": words.astype(np.int16),
        "is_next": np.array(is_next, np.int32),
    }
