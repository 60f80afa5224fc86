"""Texts as sequences of tokens: found, tokenized and packed once, then mapped from a cache on disk."""

import functools
import hashlib
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax

from data import cache as caches
from data import corpora, packing, tokenizers
from data.cache import Columns, Stored
from data.examples import Info

Form = Literal["causal", "masked"]
Pairs = Literal["on", "off"]

VERSION = 1  # of what the code makes of the same texts; a cache of another version is not looked at
TOKENIZER_FILE = "tokenizer.json"  # in the format of the library `tokenizers`
PAIRS_SEED = 0  # never the run's seed, so that runs can be compared
VOCAB_SIZES = (300, 2**18)
SEQUENCE_LENGTHS = (8, 8192)


class TextData(NamedTuple):
    """Sequences."""

    train: Columns  # name -> [N, ...]
    test: Columns
    sizes: dict[str, int]


class _Settings(NamedTuple):
    """All that the sequences depend on."""

    source: str
    directory: str
    label: str  # of the corpus, and its fingerprint
    fingerprint: str
    tokenizer: str
    vocab_size: int
    sequence_length: int
    form: str
    pairs: str


class _Made(NamedTuple):
    content: Stored
    tokenizer: str | None  # the content of its file, where it has one


def check_text(source: str, *, cache: str = "", **options: Any) -> Info:
    """Returns how many sequences there are, and of what; refuses bad names and values before anything is read.

    The number of sequences is known from the cache, or from making them. This writes nothing: what was made is kept in
    memory for ``load_text``, which writes it.

    Args:
      source: "pydoc", a TFDS set, or text files, as for ``corpora.open_corpus``.
      cache: folder of caches; "" means syncsum/data in XDG_CACHE_HOME or ~/.cache.
      **options: what the sequences are to be:

        * tokenizer: "bytes", 261 ids; or "wordpiece" (the default), learnt from the training texts;
        * vocab_size (8192): ids of "wordpiece" at most, 300 to 262,144; "bytes" has no use for it;
        * sequence_length (128): T, 8 to 8192: predictions in a causal sequence, all tokens of a masked one;
        * form: "causal" (the default) for sequences of T + 1 tokens, each predicted from those before it; "masked" for
          BERT's;
        * pairs: of masked sequences: "on" (the default) for two segments of which the second follows or not, "off" for
          one;
        * directory: folder of prepared TFDS sets, and where relative paths begin.

    Returns:
      The shapes of a sequence, "vocab_size", "mask_id" and "num_special", and the numbers of sequences.

    Raises:
      ValueError: one line; a value is not allowed, no such texts, or too few of them for one sequence.

    >>> info = check_text("pydoc", tokenizer="bytes", sequence_length=64)
    >>> info.sizes, info.example["tokens"].shape, info.num_train > 5000
    ({'vocab_size': 261, 'mask_id': 4, 'num_special': 5}, (65,), True)
    """
    settings = _settings(source, **options)
    content = caches.stored(_folder(settings, cache)) or _make(settings, cache).content
    example = {
        name: jax.ShapeDtypeStruct(column.shape[1:], column.dtype) for name, column in content.splits["train"].items()
    }
    num_train, num_test = (len(content.splits[split]["tokens"]) for split in ("train", "test"))
    return Info(example, content.notes, num_train, num_test, constants={})


def load_text(source: str, *, cache: str = "", **options: Any) -> TextData:
    """Returns the sequences: mapped from the cache, or made and written there.

    Args and Raises: as ``check_text``.

    Returns:
      train, test: {"tokens": [N, T + 1] int32} or {"tokens", "segments", "words", "is_next"}, as ``packing`` has them.
      sizes: {"vocab_size": ..., "mask_id": 4, "num_special": 5}; the vocabulary may be smaller than was asked for.
    """
    settings = _settings(source, **options)
    folder = _folder(settings, cache)
    content = caches.stored(folder)
    if content is None:
        made = _make(settings, cache)
        _make.cache_clear()  # from here on it is mapped
        if made.tokenizer is not None:
            caches.store_file(_tokenizer_folder(settings, cache), TOKENIZER_FILE, made.tokenizer)
        content = caches.store(folder, made.content)
    return TextData(content.splits["train"], content.splits["test"], content.notes)


def load_tokenizer(source: str, *, cache: str = "", **options: Any) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the sequences that ``load_text`` returns for the same arguments; writes nothing.

    >>> load_tokenizer("pydoc", tokenizer="bytes").decode([104, 3, 110])
    'ci'
    """
    return _tokenizer(_settings(source, **options), cache, None)[0]


def _settings(
    source: str,
    *,
    tokenizer: tokenizers.Name = "wordpiece",
    vocab_size: int = 8192,
    sequence_length: int = 128,
    form: Form = "causal",
    pairs: Pairs = "on",
    directory: str = "",
) -> _Settings:
    """Refuses what can be refused without reading texts."""
    for key, value, allowed in (
        ("tokenizer", tokenizer, tokenizers.Name),
        ("form", form, Form),
        ("pairs", pairs, Pairs),
    ):
        if value not in get_args(allowed):
            raise ValueError(f"data.{key}={value!r}: must be one of {', '.join(get_args(allowed))}")
    for key, number, (low, high) in (
        ("vocab_size", vocab_size, VOCAB_SIZES),
        ("sequence_length", sequence_length, SEQUENCE_LENGTHS),
    ):
        if not low <= number <= high:
            raise ValueError(f"data.{key}={number}: must be in [{low}, {high}]")
    if tokenizer == "wordpiece":
        tokenizers.library_version()
    corpus = corpora.open_corpus(source, directory=directory)
    # What makes no difference must not make another cache.
    vocab_size = vocab_size if tokenizer == "wordpiece" else tokenizers.Bytes.vocab_size
    pairs = pairs if form == "masked" else "off"
    rest = tokenizer, vocab_size, sequence_length, form, pairs
    return _Settings(source, directory, corpus.label, corpus.fingerprint, *rest)


def _folder(settings: _Settings, cache: str) -> Path:
    words = [settings.tokenizer, settings.vocab_size, settings.form, settings.sequence_length]
    words += ["pairs"] if settings.pairs == "on" else []
    return _place(settings, cache, "-".join(map(str, words)))


def _tokenizer_folder(settings: _Settings, cache: str) -> Path:
    return _place(settings, cache, f"tokenizer-{settings.vocab_size}")


def _place(settings: _Settings, cache: str, what: str) -> Path:
    version = f"{VERSION}" if settings.tokenizer == "bytes" else f"{VERSION} {tokenizers.library_version()}"
    key = hashlib.sha256(f"{version} {settings.fingerprint} {what}".encode()).hexdigest()[:12]
    return (Path(cache).expanduser() if cache else caches.root()) / f"{settings.label}-{what}-{key}"


@functools.lru_cache(1)
def _make(settings: _Settings, cache: str) -> _Made:
    """Reads, tokenizes and packs; what ``check_text`` had made is there for ``load_text``."""
    texts = corpora.open_corpus(settings.source, directory=settings.directory).read()
    tokenizer, file = _tokenizer(settings, cache, texts["train"])
    splits = {}
    for split in ("train", "test"):
        encoded, length = tokenizer.encode(texts[split]), settings.sequence_length
        if settings.form == "causal":
            splits[split] = packing.causal(encoded, sequence_length=length, split=split)
        elif settings.pairs == "on":
            splits[split] = packing.segment_pairs(encoded, sequence_length=length, seed=PAIRS_SEED)
        else:
            splits[split] = packing.full_sequences(encoded, sequence_length=length)
        if not len(encoded.ids) or not len(splits[split]["tokens"]):
            count = f"the {split} texts have {len(encoded.ids)} tokens"
            raise ValueError(
                f"data.source={settings.source!r}: {count}, too few for one sequence of data.sequence_length={length}"
            )
    return _Made(Stored(splits, tokenizers.sizes_of(tokenizer.vocab_size)), file)


def _tokenizer(settings: _Settings, cache: str, documents: list[str] | None) -> tuple[tokenizers.Tokenizer, str | None]:
    """Returns a tokenizer, and the content of its file where that has to be written still."""
    if settings.tokenizer == "bytes":
        return tokenizers.Bytes(), None
    file = caches.stored_file(_tokenizer_folder(settings, cache), TOKENIZER_FILE)
    if file is not None:
        return tokenizers.WordPiece(file), None
    if documents is None:
        documents = corpora.open_corpus(settings.source, directory=settings.directory).read()["train"]
    file = tokenizers.train_wordpiece(documents, vocab_size=settings.vocab_size)
    return tokenizers.WordPiece(file), file
