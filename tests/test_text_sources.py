"""Texts by name: which documents there are, what the cache holds, and what is refused in one line."""

import json
import os
import pathlib

import numpy as np
import pytest

from data import tfds_sets
from data.texts import corpora, packing
from data.texts.text import Texts
from data.texts.tokenizers import PAD, WordPiece
from tests.damage import edit, flip
from tests.data_folders import REAL, own_folders, random_examples, real, warnings_said, write_set, write_texts
from tests.inputs import assert_of, assert_same, text_of
from tests.refused import refused_without_a_trace

__all__ = ["own_folders", "warnings_said"]  # fixtures
SMALL = {"tokenizer": "bytes", "sequence_length": 16}
LINES = "".join(f"Line {i} says: it was a dark and stormy night.\n" for i in range(200))


@pytest.fixture(autouse=True)
def in_own_folder(own_folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(LINES)
    return str(path)


@pytest.fixture
def no_making(monkeypatch):
    """Call it to make sure that from here on nothing is packed."""

    def forbid(*arguments, **options):
        raise AssertionError("packed again")

    return lambda: [
        monkeypatch.setattr(packing, name, forbid) for name in ("causal", "segment_pairs", "full_sequences")
    ]


def load_text(source, **options):
    return Texts(source, **options).load()


# ---- documents ----


def test_the_built_in_corpus():
    documents = corpora.open_corpus("pydoc").read()
    assert len(documents["train"]) > 50 and len(documents["test"]) >= 5
    assert "assert" in documents["train"][0] and not set(documents["train"]) & set(documents["test"])


def test_one_file_gives_its_last_lines_for_testing(book):
    documents = corpora.open_corpus(book).read()
    (train,), (test,) = documents["train"], documents["test"]
    assert train + test == LINES and train.endswith("\n") and abs(len(test) / len(LINES) - 0.1) < 0.01


@pytest.mark.parametrize("content", ["one\ntwo", "one\n" + "x" * 500, "x" * 500 + "\none", "x" * 500 + "\none\n\n"])
def test_short_files_are_cut_at_an_end_of_line(content, tmp_path):
    (tmp_path / "a.txt").write_text(content)
    documents = corpora.open_corpus("a.txt").read()
    (train,), (test,) = documents["train"], documents["test"]
    assert train + test == content and train.strip() and test.strip() and train.endswith("\n")


@pytest.mark.parametrize("source", ["a.txt", "?.txt"])
def test_brackets_in_the_name_of_a_folder_are_no_pattern(source, tmp_path):
    (tmp_path / "set[1]").mkdir()
    (tmp_path / "set[1]" / "a.txt").write_text("one\ntwo\n")
    wanted = {"train": ["one\n"], "test": ["two\n"]}
    assert corpora.open_corpus(source, directory=str(tmp_path / "set[1]")).read() == wanted
    assert corpora.open_corpus(f"set[1]/{source}").read() == wanted


def test_many_files_are_documents_in_the_order_of_their_names(tmp_path):
    (tmp_path / "texts" / "99.txt").mkdir(parents=True)  # a folder is no document
    for i in range(23):
        text = f"\ufeffé {22 - i}\r\n" if i % 2 else f"é {22 - i}\n"
        (tmp_path / "texts" / f"{22 - i:02d}.txt").write_text(text, "utf-8")
    expected = [f"é {i}\n" for i in range(23)]
    documents = corpora.open_corpus("texts/*.txt").read()
    assert documents == {"train": expected[:21], "test": expected[21:]}
    assert corpora.open_corpus("*.txt", directory=str(tmp_path / "texts")).read() == documents


ARTICLES = {"train": ["a\n\na", "b"], "test": ["c\n\nc"]}
SETS = {
    "test": ({"train": ["a", "b"], "validation": ["v"], "test": ["c"]}, {}, {"train": ["a", "b"], "test": ["c"]}),
    "validation": ({"train": ["a", "b"], "validation": ["v"]}, {}, {"train": ["a", "b"], "test": ["v"]}),
    "neither": ({"train": list("abcdefghijk")}, {}, {"train": list("abcdefghij"), "test": ["k"]}),
    "ordered": ({"train": ["a", "b"], "test": ["c"]}, {"ordered": True}, {"train": ["a\nb\n"], "test": ["c\n"]}),
    "articles": (ARTICLES, {"ordered": True}, ARTICLES),
    "other name": (ARTICLES, {"features": ["sentence"]}, ARTICLES),
    "several": (ARTICLES, {"features": ["title", "text"]}, ARTICLES),
}


@pytest.mark.parametrize("case", SETS)
def test_sets_of_tfds(case, tmp_path):
    splits, options, expected = SETS[case]
    write_texts(tmp_path / "sets", "my_texts", splits, **options)
    assert corpora.open_corpus("my_texts", directory=str(tmp_path / "sets")).read() == expected


# ---- sequences ----


@pytest.mark.parametrize("form", ["causal", "masked"])
@pytest.mark.parametrize("pairs", ["on", "off"])
@pytest.mark.parametrize("tokenizer", ["bytes", "wordpiece"])
def test_check_tells_what_load_returns(form, pairs, tokenizer, book, tmp_path):
    options = {"tokenizer": tokenizer, "vocab_size": 300, "sequence_length": 16, "form": form, "pairs": pairs}
    before = sorted(tmp_path.rglob("*"))
    texts = Texts(book, **options)
    info = texts.info()
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written
    data = texts.load()
    for split, count in ((data.train.columns, info.num_train), (data.test.columns, info.num_test)):
        assert_of(split, info.example)
        assert {len(column) for column in split.values()} == {count} and count > 0
        assert split["tokens"].min() >= 0 and split["tokens"].max() < info.sizes["vocab_size"]
    assert info == Texts(book, **options).info()  # from the cache
    assert info.sizes["mask_id"] == 4 and info.sizes["num_special"] == 5
    assert info.sizes["vocab_size"] == 261 if tokenizer == "bytes" else info.sizes["vocab_size"] <= 300
    assert info.example["tokens"].shape == ((17,) if form == "causal" else (16,))


def test_all_bytes_of_a_file_come_back(book):
    data = Texts(book, **SMALL).load()
    train, test = (text_of(split.columns["tokens"][:, 1:].ravel()) for split in (data.train, data.test))
    assert LINES.startswith(train) and len(LINES) - len(train + test) < 16 and LINES.endswith(test)


@pytest.mark.parametrize("tokenizer", ["bytes", "wordpiece"])
def test_what_was_checked_is_not_made_again_and_is_mapped(tokenizer, book, no_making):
    options = {"tokenizer": tokenizer, "vocab_size": 300, "form": "masked", "sequence_length": 32}
    texts = Texts(book, **options)
    info = texts.info()
    no_making()
    first, second = texts.load(), load_text(book, **options)
    assert_same(first.train.columns, second.train.columns)
    assert_same(first.test.columns, second.test.columns)
    assert isinstance(second.train.columns["tokens"].base, np.memmap)
    assert Texts(book, **options).info() == info  # from the cache
    with pytest.raises(AssertionError, match="packed again"):
        load_text(book, **{**options, "sequence_length": 33})


def test_sequences_of_any_length_share_a_tokenizer_that_the_library_reads(book, tmp_path):
    import tokenizers

    for length in (16, 32):
        load_text(book, vocab_size=300, sequence_length=length)
    (manifest,) = (tmp_path / "cache").rglob("*tokenizer*/manifest.json")
    file = json.loads(manifest.read_text())["notes"]["file"]
    theirs = tokenizers.Tokenizer.from_str(file)
    ours = WordPiece(file)
    assert theirs.encode("a stormy night").ids == ours.encode(["a stormy night"]).ids.tolist()


def test_a_fingerprint_follows_the_texts_into_any_folder(book, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "book.txt").write_text(LINES)
    (tmp_path / "other.txt").write_text(LINES.replace("Line 7 ", "Line 8 "))
    made = {name: Texts(name, **SMALL) for name in ("book.txt", "elsewhere/book.txt", "other.txt")}
    found = {name: texts.info().fingerprint for name, texts in made.items()}
    assert found["book.txt"] == found["elsewhere/book.txt"] != found["other.txt"]
    made["book.txt"].load()
    assert Texts(book, **SMALL).info().fingerprint == found["book.txt"], "from the cache"


def test_changed_texts_are_made_again(book, tmp_path):
    first = load_text(book, **SMALL)
    pathlib.Path(book).write_text(LINES.upper())
    os.utime(book, ns=(1, 1))
    assert not np.array_equal(first.train.columns["tokens"], load_text(book, **SMALL).train.columns["tokens"])
    assert len(list((tmp_path / "cache" / "syncsum" / "data").iterdir())) == 2


DAMAGES = {
    "flipped bit": lambda folder, _: flip(folder / "train.tokens.npy"),
    "sizes": lambda folder, _: edit(folder / "manifest.json", '"mask_id": 4', '"mask_id": 5'),
    "tokenizer": lambda folder, tokenizer: (flip(tokenizer / "manifest.json"), (folder / "test.tokens.npy").unlink()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cache_is_made_again(damage, book, tmp_path, warnings_said, no_making):
    options = {"vocab_size": 300, "sequence_length": 16}
    first = load_text(book, **options)
    train, test = ({name: np.array(x) for name, x in split.columns.items()} for split in (first.train, first.test))
    info = Texts(book, **options).info()
    tokenizer, folder = sorted((tmp_path / "cache" / "syncsum" / "data").iterdir())
    DAMAGES[damage](folder, tokenizer)
    again = load_text(book, **options)
    assert_same(train, again.train.columns)
    assert_same(test, again.test.columns)
    assert len(warnings_said) == (2 if damage == "tokenizer" else 1)
    assert all("is damaged" in said and "\n" not in said for said in warnings_said)
    no_making()
    assert Texts(book, **options).info() == info


# ---- what is refused ----


def image_set(tmp_path):
    write_set(tmp_path / "sets", "mnist", {"train": random_examples(2), "test": random_examples(2)})


def file(content):
    return lambda tmp_path: (tmp_path / "a.txt").write_bytes(content)


def texts(**options):
    splits = options.pop("splits", {"train": ["a" * 99], "test": ["b" * 99]})
    return lambda tmp_path: write_texts(tmp_path / "sets", "my_texts", splits, **options)


def lose_shard(tmp_path):
    texts()(tmp_path)
    next((tmp_path / "sets").rglob("*test*")).unlink()


REFUSED = {  # what is in the folder, the source, the error
    "misspelt": (None, "pidoc", "data.source='pidoc': not a known data set; did you mean 'pydoc'?"),
    "unlike any": (None, "qqqqqq", "data.source='qqqqqq': not a known data set; try pydoc, tiny_shakespeare"),
    "no name": (None, "", "data.source='': not a known data set"),
    "not prepared": (None, "tiny_shakespeare", "sets; run `python -m data.prepare tiny_shakespeare"),
    "images": (image_set, "mnist", "data.source='mnist': not a set of texts: its examples have image, label"),
    "no text": (texts(features=["x", "y"]), "my_texts", "its examples have x, y; one of type Text is needed"),
    "no train": (texts(splits={"test": ["a"]}), "my_texts", "has no split 'train' with examples; has test"),
    "missing shard": (lose_shard, "my_texts", "my_texts-test.array_record-00000-of-00001 is missing; run "),
    "not UTF-8": (texts(splits={"train": [b"\xff"], "test": ["b"]}), "my_texts", "split 'train' cannot be read: "),
    "no file": (None, "none.txt", "data.source='none.txt': must be text files that can be read (No such file"),
    "no files": (None, "none/*", "data.source='none/*': no file has such a name"),
    "a folder": (None, "./sets", "must be text files that can be read (sets is a folder; write './sets/*.txt')"),
    "null byte": (None, "/\0", "must be text files that can be read ("),
    "file of bytes": (file(b"a\xff\n" * 99), "a.txt", "data.source='a.txt': a.txt cannot be read: 'utf-8' codec"),
    "empty": (file(b""), "a.txt", "data.source='a.txt': the train texts have 0 tokens, too few for one"),
    "no words": (file(b" \n \n"), "a.txt", "data.tokenizer='wordpiece': the training"),
    "short": (file(b"ab\nc\n"), "a.txt", "too few for one sequence of data.sequence_length=16"),
    "one line": (file(b"a" * 99), "a.txt", "data.source='a.txt': the test texts have 0 tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("call", [lambda **options: Texts(**options).info(), load_text], ids=["info", "load"])
def test_refused(case, call, tmp_path, capfd):
    make, source, told = REFUSED[case]
    (tmp_path / "sets").mkdir()
    if make:
        make(tmp_path)
    options = {"source": source, **SMALL, "tokenizer": "wordpiece" if case == "no words" else "bytes"}
    if "." not in source and "/" not in source:
        options["directory"] = str(tmp_path / "sets")
    with refused_without_a_trace(told, tmp_path, capfd):
        call(**options)


@pytest.mark.parametrize("source", ["my_texts", "a.txt"])
def test_folder_that_is_none(source, tmp_path):
    with pytest.raises(ValueError, match=r"data.dir='.*none': must be a folder that can be read"):
        Texts(source, directory=str(tmp_path / "none"), **SMALL)


# ---- real sets ----


@pytest.mark.data
@real("tiny_shakespeare")
def test_tiny_shakespeare():
    texts = Texts("tiny_shakespeare", tokenizer="bytes", sequence_length=128, directory=REAL)
    train, test = (split.columns["tokens"] for split in (texts.load().train, texts.load().test))
    assert train.shape == (7842, 129) and test.shape == (436, 129)
    builder, _ = tfds_sets.open_builder("tiny_shakespeare", directory=REAL, kind=tfds_sets.TEXTS)
    read = "".join(tfds_sets.read_texts(builder, "test", source="tiny_shakespeare"))
    assert read == text_of(test[:, 1:].ravel())
    assert bigram_perplexity(train, test, vocab_size=261, smoothing=0.02) == pytest.approx(12.18, abs=0.01)


def bigram_perplexity(train, test, *, vocab_size, smoothing):
    """The perplexity a token of a bigram model with add-k smoothing: what a language model has to beat."""
    counts = np.zeros((vocab_size, vocab_size))
    np.add.at(counts, (train[:, :-1], train[:, 1:]), 1)
    counts[:, PAD] = 0  # padding is not to be predicted
    probability = (counts + smoothing) / (counts.sum(1, keepdims=True) + smoothing * vocab_size)
    given, wanted = test[:, :-1], test[:, 1:]
    return np.exp(-np.log(probability[given, wanted][wanted != PAD]).mean())
