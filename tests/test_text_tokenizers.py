"""Tokenizers: what goes in comes out, words are known, and a corpus has one tokenizer file, bit for bit."""

import itertools
import json
import random
import zlib

import numpy as np
import pytest

from data.texts import tokenizers
from data.texts.tokenizers import SPECIAL, UNK, Bytes, WordPiece, train_wordpiece
from tests.inputs import text_of
from tests.refused import refused
from tests.started import python

CORPUS = [
    "The cat sat on the mat. The cats sat on mats; a mat, a cat!\n" * 20,
    "Über naïve cafés: ÜBER naive cafes.\n" * 9,
]
ODD = [
    "",
    " ",
    "\n\n",
    "one",
    "é",
    "e\u0301",
    "日本語 text",
    "🙂",
    "\0",
    "\u200b",
    "a\x1cb \x85",
    "x" * 101,
    "x" * 5000,
    "##at",
    "[MASK] [SEP][PAD]",
    "İstanbul ß ﬁ",
    "don't",
    "1,000.5",
    "\u2003wide\u3000",
    "-" * 50,
    "\r\nwin\r\n",
    "漢,字㐀\U00020000",
    "," * 9,
    "ab" * 80,
    "ab" * 80 + "-" + "b" * 101,
]


@pytest.fixture(scope="module")
def file():
    return train_wordpiece(CORPUS, vocab_size=300)


@pytest.fixture(scope="module")
def wordpiece(file):
    return WordPiece(file)


def texts(rng):
    """Random texts of odd parts."""
    alphabet = [*ODD, " ", "\n", "\t", "cat", "mat", "the", ".", "Ü"]
    return ["".join(rng.choice(alphabet) for _ in range(rng.randrange(12))) for _ in range(30)]


# ---- bytes ----


@pytest.mark.parametrize("text", [*ODD, "".join(map(chr, range(0x250)))])
def test_bytes_round_trip(text):
    encoded = Bytes().encode([text])
    assert text_of(encoded.ids) == text
    assert len(encoded.ids) == len(text.encode())
    assert all(len(SPECIAL) <= i < Bytes.vocab_size for i in encoded.ids)


def test_bytes_words():
    encoded = Bytes().encode(["ab, cd", "é1 "])
    assert encoded.starts.astype(int).tolist() == [1, 0, 1, 1, 1, 0, 1, 0, 0, 1]
    assert encoded.bounds.tolist() == [0, 6, 10]


def test_documents_without_tokens_are_left_out(wordpiece):
    whole = Bytes().encode(["", "cat", "", "", "mat cat", ""])
    parts = Bytes().encode(["cat", "mat cat"])
    np.testing.assert_array_equal(whole.ids, parts.ids)
    assert whole.bounds.tolist() == parts.bounds.tolist() == [0, 3, 10]
    for tokenizer, nothing in itertools.product([Bytes(), wordpiece], ([], [""])):
        encoded = tokenizer.encode(nothing)
        assert encoded.ids.dtype == np.int32 and len(encoded.ids) == len(encoded.starts) == 0
        assert encoded.bounds.tolist() == [0]


# ---- word pieces ----


def test_special_tokens_and_size(file, wordpiece):
    vocabulary = json.loads(file)["model"]["vocab"]
    assert [vocabulary[name] for name in SPECIAL] == [0, 1, 2, 3, 4]
    assert sorted(vocabulary.values()) == list(range(wordpiece.vocab_size))
    assert wordpiece.vocab_size < 300  # a small corpus has no more pieces that occur twice


def test_size_is_kept_to():
    many = [" ".join(chr(0x4E00 + i) + "a" * (i % 7) + chr(97 + i % 26) * (i % 5) for i in range(3000)) * 2]
    for vocab_size in (300, 1000):
        assert WordPiece(train_wordpiece(many, vocab_size=vocab_size)).vocab_size <= vocab_size


def test_words_are_whole_and_in_lower_case(file, wordpiece):
    names = {number: name for name, number in json.loads(file)["model"]["vocab"].items()}

    def words(encoded):
        return " ".join(names[number] for number in encoded.ids.tolist()).replace(" ##", "")

    encoded = wordpiece.encode(["The Cat sat; über CAFÉS"])
    assert words(encoded) == "the cat sat ; uber cafes"
    assert encoded.starts.sum() == 6
    pieces = wordpiece.encode(["catatat"])
    assert words(pieces) == "catatat" and len(pieces.ids) > 1
    assert pieces.starts[0] and not pieces.starts[1:].any()


def test_what_cannot_be_known_is_unk(wordpiece):
    for text in ("日", "x" * 101, "a" * 101, "catq"):
        encoded = wordpiece.encode([text])
        assert encoded.ids.tolist() == [UNK] and encoded.starts.tolist() == [True]
    assert not np.isin(wordpiece.encode(["[PAD] [CLS] [SEP] [MASK]"]).ids, [0, 2, 3, 4]).any()


@pytest.mark.parametrize("seed", range(5))
def test_same_tokens_and_words_as_the_library(seed, file, wordpiece):
    """Texts are parted where words end and each part encoded once; the library encodes whole texts."""
    from tokenizers import Tokenizer

    documents = texts(random.Random(seed))
    ours = wordpiece.encode(documents)
    theirs = Tokenizer.from_str(file).encode_batch(documents, add_special_tokens=False)
    assert ours.ids.tolist() == [i for encoding in theirs for i in encoding.ids]
    words = [encoding.word_ids for encoding in theirs]
    assert ours.starts.tolist() == [i == 0 or word[i] != word[i - 1] for word in words for i in range(len(word))]
    assert np.diff(ours.bounds).tolist() == [len(word) for word in words if word]


def test_no_words_to_learn_from():
    for nothing in ([], ["", " \n"], ["\0"]):
        with refused(ValueError, r"^data.tokenizer='wordpiece': the training texts hold no words"):
            train_wordpiece(nothing, vocab_size=300)


# ---- one corpus, one file ----

PRINT_FILE = """
import zlib
from pydoc_data import topics
from data.texts.tokenizers import train_wordpiece
print(zlib.crc32(train_wordpiece(sorted(topics.topics.values()), vocab_size=1000).encode()))
"""


def test_the_file_is_the_same_in_every_process():
    """The library's own trainer gives another file in nearly every process, as the order of its hash tables differs."""
    files = set()
    for seed, parallel in (("1", "true"), ("2", "false")):
        done = python("-c", PRINT_FILE, PYTHONHASHSEED=seed, TOKENIZERS_PARALLELISM=parallel)
        assert done.returncode == 0, done.stderr
        files.add(done.stdout)
    assert len(files) == 1


def test_the_file_is_the_same_for_ever(file):
    """The order of documents makes no difference; a version of the library that learns otherwise should be noticed."""
    assert train_wordpiece(CORPUS[::-1], vocab_size=300) == file
    assert zlib.crc32(json.dumps(json.loads(file)["model"]["vocab"]).encode()) == 4289332771


def test_library_that_is_not_there(monkeypatch):
    def missing(name):
        raise tokenizers.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(tokenizers.metadata, "version", missing)
    with pytest.raises(ValueError, match=r"^data.tokenizer='wordpiece': needs the package tokenizers"):
        tokenizers.library_version()
