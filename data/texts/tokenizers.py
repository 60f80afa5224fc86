"""Tokenizers: bytes, or word pieces learnt from the training texts.

Ids 0 to 4 are special tokens. No text is encoded as [PAD], [CLS], [SEP] or [MASK].
"""

import collections
import itertools
import json
import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Literal, NamedTuple

import numpy as np

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4 of every tokenizer
PAD, UNK, CLS, SEP, MASK = range(5)
MAX_WORD_LENGTH = 100  # characters; a longer word is [UNK], as in BERT
MAX_ALPHABET = 1000  # characters; a word with any other character is [UNK]
MIN_COUNT = 2  # a pair of pieces must occur this often to become one piece
# Each punctuation mark and Chinese character is a word in BERT, and the library splits words at these spaces, whatever
# else it treats as one.
_ALONE = "!-/:-@\\[-`{-~\u3400-\u4dbf\u4e00-\u9fff"
RUN = re.compile(f"[{_ALONE}]|[^ \t\n\r{_ALONE}]+")

Name = Literal["bytes", "wordpiece"]


class Encoded(NamedTuple):
    """The tokens of documents, one document after another; documents without tokens are left out, so D' <= D."""

    ids: np.ndarray  # [S] int32
    starts: np.ndarray  # [S] bool: the first token of a word
    bounds: np.ndarray  # [D' + 1] int64: document d is ids[bounds[d]:bounds[d + 1]]


class Bytes:
    """The bytes of UTF-8: id = 5 + byte, 261 ids in all.

    A word is a run of letters, digits and non-ASCII bytes; every other byte, such as a space, is a word of its own.

    >>> encoded = Bytes().encode(["no, é"])
    >>> encoded.ids.tolist(), encoded.starts.astype(int).tolist()
    ([115, 116, 49, 37, 200, 174], [1, 0, 1, 1, 1, 0])
    """

    vocab_size = len(SPECIAL) + 256

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Returns the bytes of each document, as tokens."""
        contents = [document.encode() for document in documents]
        codes = np.frombuffer(b"".join(contents), np.uint8)
        is_of_word = np.array([chr(byte).isalnum() or byte >= 128 for byte in range(256)])
        in_words = is_of_word[codes]
        starts = np.ones(len(codes), bool)
        starts[1:] = ~(in_words[1:] & in_words[:-1])
        ids = codes.astype(np.int32) + len(SPECIAL)
        return _bounded(ids, starts, [*map(len, contents)])


class WordPiece:
    """Words as their longest known pieces, from left to right; lower-cased and without accents, as in BERT.

    Reference: Devlin et al. 2019, BERT, section 3; Wu et al. 2016, Google's Neural Machine Translation System, 4.1.
    """

    def __init__(self, file: str):
        """Takes the content of a file that ``train_wordpiece`` made."""
        import tokenizers

        self._tokenizer: Any = tokenizers.Tokenizer.from_str(file)
        self.vocab_size = self._tokenizer.get_vocab_size()
        names = [str(self._tokenizer.id_to_token(number)) for number in range(self.vocab_size)]
        self._inside = np.array([name.startswith("##") and name != "##" for name in names])

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Returns the pieces of each document's words."""
        runs, index, counts = _runs(documents)
        encodings = self._tokenizer.encode_batch_fast(runs, add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        pool = np.fromiter(itertools.chain.from_iterable(lists), np.int32)
        lengths = np.fromiter(map(len, lists), np.int64)
        first = np.cumsum(lengths) - lengths  # of each run in the pool
        tokens = lengths[index]  # of each occurrence
        before = np.cumsum(tokens) - tokens
        ids = pool[np.repeat(first[index] - before, tokens) + np.arange(tokens.sum())]
        ends = np.concatenate([[0], np.cumsum(tokens)])[np.cumsum([0, *counts])]
        return _bounded(ids, ~self._inside[ids], np.diff(ends).tolist())


class _Numbers(dict[str, int]):
    """Numbers runs in the order in which they first occur."""

    def __missing__(self, run: str) -> int:
        if len(run) > MAX_WORD_LENGTH and run.isascii() and run.isalnum():
            # Any word beyond the limit is [UNK]. The library reads a short one of the same characters in its place.
            short = "".join(dict.fromkeys(run)).ljust(MAX_WORD_LENGTH + 1, run[0])
            if short != run:
                return self[short]
        return self.setdefault(run, len(self))


def _runs(documents: Sequence[str]) -> tuple[list[str], np.ndarray, list[int]]:
    """Splits texts at spaces, line ends and punctuation. Few different runs occur often, so each is tokenized once.

    Returns:
      The U different runs; the index among them of each run in the texts, [R] int64; the number of runs per document.
    """
    from tqdm import tqdm

    numbers = _Numbers()
    parts, counts = [np.zeros(0, np.int64)], []
    for document in tqdm(documents, desc="splitting", unit=" documents", leave=False, disable=None):
        parts.append(np.fromiter(map(numbers.__getitem__, RUN.findall(document)), np.int64))
        counts.append(len(parts[-1]))
    return list(numbers), np.concatenate(parts), counts


def sizes_of(vocab_size: int) -> dict[str, int]:
    """Returns the sizes of a text set for models and tasks."""
    return {"vocab_size": vocab_size, "mask_id": MASK, "num_special": len(SPECIAL)}


def library_version() -> str:
    """Returns the version of the library that "wordpiece" needs; does not import it.

    Raises:
      ValueError: One line; it is not installed.
    """
    try:
        return metadata.version("tokenizers")
    except metadata.PackageNotFoundError:
        raise ValueError("data.tokenizer='wordpiece': needs the package tokenizers, which is not installed") from None


def _bounded(ids: np.ndarray, starts: np.ndarray, lengths: list[int]) -> Encoded:
    bounds = np.cumsum([0, *(length for length in lengths if length)], dtype=np.int64)
    starts[bounds[:-1]] = True
    return Encoded(ids, starts, bounds)


def train_wordpiece(documents: Sequence[str], *, vocab_size: int) -> str:
    """Learns a tokenizer from documents; returns its file in the format of the library ``tokenizers``.

    The same documents and size give the same file, bit for bit. The library's trainer alone does not guarantee that: it
    numbers the characters inside words in the order of a hash table, and breaks ties between pairs of pieces by these
    numbers. So this function counts the words, and passes these characters in sorted order, as if they were special
    tokens.

    Args:
      documents: The training texts.
      vocab_size: Maximal number of ids; small corpora have fewer pieces that occur twice.

    Raises:
      ValueError: One line; the documents contain no words.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from tqdm import tqdm

    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    words: collections.Counter[str] = collections.Counter()
    runs, index, _ = _runs(documents)
    of_runs = zip(runs, np.bincount(index, minlength=len(runs)).tolist(), strict=True)
    for run, count in tqdm(of_runs, desc="counting", total=len(runs), unit=" words", leave=False, disable=None):
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(run)):
            words[word] += count
    characters: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        characters.update(dict.fromkeys(word, count))
    # A character may need two ids, at the start of a word and inside; half of all ids are for longer pieces.
    room = min(MAX_ALPHABET, (vocab_size - len(SPECIAL)) // 4)
    alphabet = {c for c, _ in sorted(characters.items(), key=lambda item: (-item[1], item[0]))[:room]}
    known = sorted(word for word in words if len(word) <= MAX_WORD_LENGTH and alphabet.issuperset(word))
    inside = sorted({c for word in known for c in word[1:]})
    if not known:
        raise ValueError("data.tokenizer='wordpiece': the training texts hold no words to learn from")

    learner = Tokenizer(models.WordPiece(unk_token=SPECIAL[UNK]))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_COUNT,
        special_tokens=[*SPECIAL, *("##" + c for c in inside)],
        show_progress=False,
    )
    learning = tqdm(known, desc="learning", unit=" words", leave=False, disable=None)
    learner.train_from_iterator((" ".join([word] * words[word]) for word in learning), trainer)

    # A new tokenizer with the vocabulary alone does not treat a text's own "[MASK]" or "##a" as a special token.
    model = models.WordPiece(learner.get_vocab(), unk_token=SPECIAL[UNK], max_input_chars_per_word=MAX_WORD_LENGTH)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    return json.dumps(json.loads(tokenizer.to_str()), indent=1, ensure_ascii=False)
