"""Texts as sequences of tokens: found, tokenized and packed once, then mapped from a cache on disk."""

import hashlib
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from data import cache as caches
from data import folders
from data.cache import Stored
from data.examples import Arrays, Columns, Dataset, Info
from data.texts import corpora, packing, tokenizers

VERSION = 2  # of the packing code; caches of other versions are ignored
PAIRS_SEED = 0  # never the run's seed, so that runs can be compared


class Texts:
    """The sequences of tokens of a corpus.

    >>> texts = Texts("pydoc", tokenizer="bytes", sequence_length=64)
    >>> info = texts.info()
    >>> info.sizes, info.example["tokens"].shape, info.num_train > 5000
    ({'vocab_size': 261, 'mask_id': 4, 'num_special': 5}, (65,), True)
    """

    def __init__(
        self,
        source: str,
        *,
        tokenizer: tokenizers.Name = "wordpiece",
        vocab_size: int = 8192,
        sequence_length: int = 128,
        form: Literal["causal", "masked"] = "causal",
        pairs: Literal["on", "off"] = "on",
        directory: str = "",
    ):
        """Finds the texts; reads none of them.

        Args:
          source: "pydoc", a TFDS set, or text files, as for ``corpora.open_corpus``.
          tokenizer: "bytes", with 261 ids, or "wordpiece", which is learnt from the training texts.
          vocab_size: Maximal number of ids of "wordpiece"; "bytes" ignores it.
          sequence_length: T: the predictions in a causal sequence, or all tokens of a masked one.
          form: "causal" for sequences of T + 1 tokens, each predicted from those before it; "masked" for BERT's.
          pairs: "on" gives masked sequences two segments, and the second follows the first or not; "off" gives one.
          directory: Folder of prepared TFDS sets, and the folder in which relative paths begin.

        Raises:
          ValueError: One line; the texts do not exist, or the tokenizer's library is missing.
        """
        version = str(VERSION)
        if tokenizer == "wordpiece":
            version += f" {tokenizers.library_version()}"
        else:
            vocab_size = tokenizers.Bytes.vocab_size
        self._source = source
        self._corpus = corpora.open_corpus(source, directory=directory)
        self._kind = tokenizer
        self._vocab_size = vocab_size
        self._length = sequence_length
        self._form = form
        self._pairs = pairs if form == "masked" else "off"  # settings without effect must not make another cache
        self._made: tuple[Stored, str | None] | None = None

        def folder(name: str) -> Path:
            key = hashlib.sha256(f"{version} {self._corpus.fingerprint} {name}".encode()).hexdigest()[:12]
            return folders.root() / f"{self._corpus.label}-{name}-{key}"

        suffix = "-pairs" if self._pairs == "on" else ""
        self._folder = folder(f"{tokenizer}-{vocab_size}-{form}-{sequence_length}{suffix}")
        self._tokenizer_folder = folder(f"tokenizer-{vocab_size}")

    def info(self) -> Info:
        """Returns the shape of a sequence, the vocabulary's size and the numbers of sequences.

        They come from the cache, or from making the sequences, which stay in memory for ``load``. Writes nothing.

        Raises:
          ValueError: One line; the texts cannot be read, or are too short for one sequence.
        """
        content = caches.stored(self._folder) or self._make()[0]
        example = {
            name: jax.ShapeDtypeStruct(column.shape[1:], column.dtype)
            for name, column in content.splits["train"].items()
        }
        num_train, num_test = (len(content.splits[split]["tokens"]) for split in ("train", "test"))
        sizes = content.notes["sizes"]
        fingerprint = content.notes["fingerprint"]
        return Info(example, sizes, num_train, num_test, constants={}, fingerprint=fingerprint)

    def load(self) -> Dataset:
        """Returns the sequences: mapped from the cache, or made and written there.

        The columns are {"tokens": [N, T + 1] int32}, or {"tokens", "segments", "words", "is_next"} as ``packing`` makes
        them.

        Raises:
          ValueError: As for ``info``.
        """
        content = caches.stored(self._folder)
        if content is None:
            made, file = self._make()
            self._made = None  # from now on it is mapped
            if file is not None:
                caches.store(self._tokenizer_folder, {}, chunks=lambda split: iter(()), notes=lambda: {"file": file})
            shapes = {}
            for split, columns in made.splits.items():
                shapes[split] = {name: (column.shape, column.dtype) for name, column in columns.items()}
            content = caches.store(
                self._folder, shapes, chunks=lambda split: iter([made.splits[split]]), notes=lambda: made.notes
            )
        return Dataset(self._source, Arrays(content.splits["train"]), Arrays(content.splits["test"]), {})

    def _make(self) -> tuple[Stored, str | None]:
        """Returns the sequences, and the tokenizer's file if it is not in the cache yet."""
        if self._made is None:
            texts = self._corpus.read()
            tokenizer, file = self._tokenizer(texts["train"])
            splits = {split: self._pack(tokenizer.encode(texts[split]), split) for split in ("train", "test")}
            notes = {"sizes": tokenizers.sizes_of(tokenizer.vocab_size), "fingerprint": _fingerprint(splits)}
            self._made = Stored(splits, notes), file
        return self._made

    def _pack(self, encoded: tokenizers.Encoded, split: str) -> Columns:
        if self._form == "causal":
            packed = packing.causal(encoded, sequence_length=self._length, split=split)
        elif self._pairs == "on":
            packed = packing.segment_pairs(encoded, sequence_length=self._length, seed=PAIRS_SEED)
        else:
            packed = packing.full_sequences(encoded, sequence_length=self._length)
        if not len(encoded.ids) or not len(packed["tokens"]):
            raise ValueError(
                f"data.source={self._source!r}: the {split} texts have {len(encoded.ids)} tokens, too few for one "
                f"sequence of data.sequence_length={self._length}"
            )
        return packed

    def _tokenizer(self, documents: list[str]) -> tuple[tokenizers.Bytes | tokenizers.WordPiece, str | None]:
        """Returns the tokenizer, and the content of its file if it is not in the cache yet."""
        if self._kind == "bytes":
            return tokenizers.Bytes(), None
        if cached := caches.stored(self._tokenizer_folder):
            return tokenizers.WordPiece(cached.notes["file"]), None
        file = tokenizers.train_wordpiece(documents, vocab_size=self._vocab_size)
        return tokenizers.WordPiece(file), file


def _fingerprint(splits: dict[str, Columns]) -> str:
    """Returns 12 hex digits that change with the sequences; unlike the corpus's, they are the same in any folder."""
    content = hashlib.sha256()
    for columns in splits.values():
        for column in columns.values():
            content.update(repr(column.shape).encode())
            content.update(np.ascontiguousarray(column).data)
    return content.hexdigest()[:12]
