"""Sequences: every token is predicted once, rows are as BERT wants them, whatever the documents."""

import numpy as np
import pytest

from data.texts import packing
from data.texts.tokenizers import CLS, PAD, SEP, UNK, Bytes, Encoded
from tests.test_text_tokenizers import ODD


def documents(seed, *, num_documents, longest, word=4):
    """Random documents of ids from 5 up, that count up so that a place is known by its token; some are [UNK]."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, num_documents)
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(5, 5 + bounds[-1], dtype=np.int32)
    starts = rng.random(len(ids)) < 1 / word
    starts[bounds[:-1]] = True
    return Encoded(ids, starts, bounds)


CASES = {
    "usual": documents(0, num_documents=20, longest=200),
    "short": documents(1, num_documents=200, longest=3),
    "one": documents(2, num_documents=1, longest=3000),
    "one token": documents(3, num_documents=1, longest=1),
    "unknown words": Encoded(np.array([UNK, UNK, 9], np.int32), np.ones(3, bool), np.array([0, 3])),
    "very long words": documents(4, num_documents=5, longest=400, word=1000),
    "odd bytes": Bytes().encode(ODD),
    "nothing": Bytes().encode([]),
}
LENGTHS = (8, 33, 128)


def fills(encoded):
    """The documents with a [SEP] before, between and after them."""
    stream = [SEP]
    for a, b in zip(encoded.bounds, encoded.bounds[1:], strict=False):
        stream += [*encoded.ids[a:b].tolist(), SEP]
    return stream


# ---- causal ----


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_every_token_is_predicted_once_from_those_before_it(case, length):
    encoded = CASES[case]
    stream = fills(encoded)
    for split in ("train", "test"):
        tokens = packing.causal(encoded, sequence_length=length, split=split)["tokens"]
        assert tokens.dtype == np.int32 and tokens.shape[1] == length + 1
        predicted = tokens[:, 1:].ravel()
        dropped = len(stream) - 1 - len(predicted)
        if split == "test":
            assert predicted[predicted != PAD].tolist() == stream[1:]
            assert (predicted[: len(stream) - 1] != PAD).all()
        else:
            assert predicted.tolist() == stream[1 : len(predicted) + 1] and 0 <= dropped < length
        np.testing.assert_array_equal(tokens[1:, 0], tokens[:-1, -1])  # no context is lost but what lies a row before
        assert not len(tokens) or tokens[0, 0] == SEP


# ---- masked ----


def assert_well_formed(packed, encoded, length):
    tokens, segments, words, is_next = (packed[name] for name in ("tokens", "segments", "words", "is_next"))
    assert [x.dtype for x in (tokens, segments, words, is_next)] == [np.int32, np.int8, np.int16, np.int32]
    assert tokens.shape == segments.shape == words.shape == (len(is_next), length)
    word_starts = dict(zip(encoded.ids.tolist(), encoded.starts.tolist(), strict=True))
    for row, segment, word in zip(tokens, segments, words, strict=True):
        used = np.count_nonzero(row != PAD)
        assert (row[:used] != PAD).all() and not segment[used:].any()
        assert row[0] == CLS and row[used - 1] == SEP and used >= 3
        special = np.isin(row, (PAD, CLS, SEP))
        np.testing.assert_array_equal(word == -1, special)
        inside = word[~special]
        assert inside[0] == 0
        assert set(np.diff(inside).tolist()) <= {0, 1}  # each word once, one after another
        for i in range(1, used):
            if not special[i] and not special[i - 1] and len(word_starts) == len(encoded.ids):  # ids that tell a place
                assert (word[i] > word[i - 1]) == word_starts[int(row[i])]


def pairs(packed):
    """The parts A and B of each row, and whether it is said that B follows A."""
    for row, segment, is_next in zip(packed["tokens"], packed["segments"], packed["is_next"], strict=True):
        used = np.count_nonzero(row != PAD)
        yield row[1:used][segment[1:used] == 0][:-1], row[:used][segment[:used] == 1][:-1], is_next


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_pairs_are_well_formed_and_hold_every_token_once(case, length):
    encoded = CASES[case]
    packed = packing.segment_pairs(encoded, sequence_length=length, seed=0)
    assert_well_formed(packed, encoded, length)
    walked = []
    for row, segment, (a, b, is_next) in zip(packed["tokens"], packed["segments"], pairs(packed), strict=True):
        assert len(a) and len(b) and is_next in (0, 1)
        assert np.count_nonzero(row == SEP) == 2
        assert segment[len(a) + 1] == 0
        assert segment[len(a) + len(b) + 2] == 1
        walked += [*a.tolist(), *(b.tolist() if is_next else [])]
    if case in ("one token", "nothing"):
        assert not walked
    else:
        assert walked == encoded.ids.tolist()


def test_the_label_says_whether_b_follows_a():
    encoded = documents(0, num_documents=30, longest=300)
    packed = packing.segment_pairs(encoded, sequence_length=32, seed=1)
    document = lambda token: int(np.searchsorted(encoded.bounds, token - 5, side="right"))  # noqa: E731
    for a, b, is_next in pairs(packed):
        for part in (a, b):
            assert (np.diff(part) == 1).all() and document(part[0]) == document(part[-1])
        assert (document(a[0]) == document(b[0])) == (b[0] == a[-1] + 1) == is_next


def test_random_segments_of_a_single_document_come_from_afar():
    encoded = documents(0, num_documents=1, longest=4000, word=1)
    packed = packing.segment_pairs(encoded, sequence_length=32, seed=1)
    for a, b, is_next in pairs(packed):
        if not is_next:
            assert min(abs(b[0] - a[-1]), abs(a[0] - b[-1])) > 1
            assert not set(a.tolist()) & set(b.tolist())


def test_half_of_the_pairs_follow():
    encoded = documents(0, num_documents=4, longest=200_000)
    is_next = packing.segment_pairs(encoded, sequence_length=64, seed=0)["is_next"]
    assert len(is_next) > 2000 and abs(is_next.mean() - 0.5) < 4 * 0.5 / len(is_next) ** 0.5
    always = packing.segment_pairs(encoded, sequence_length=64, seed=0, next_probability=1.0)["is_next"]
    never = packing.segment_pairs(encoded, sequence_length=64, seed=0, next_probability=0.0)["is_next"]
    assert always.mean() > 0.99 and not never.any()


def test_one_row_in_ten_is_short():
    encoded = documents(0, num_documents=1, longest=400_000, word=1)
    for probability in (0.0, 0.1, 1.0):
        packed = packing.segment_pairs(encoded, sequence_length=64, seed=0, short_probability=probability)
        short = ((packed["tokens"] != PAD).sum(1) < 64)[:-2]  # the document's end is short too
        share = probability * 60 / 61  # a random length may be the longest
        error = (share * (1 - share) / len(short)) ** 0.5
        assert abs(short.mean() - share) < 4 * error + 0.005  # B may begin near the document's end


def test_first_segments_have_any_length():
    encoded = documents(0, num_documents=1, longest=400_000, word=1)
    packed = packing.segment_pairs(encoded, sequence_length=16, seed=0, short_probability=0.0)
    lengths = (packed["segments"] == 0) & (packed["words"] >= 0)
    counts = np.bincount(lengths.sum(1), minlength=13)[1:13]
    assert (abs(counts / counts.sum() - 1 / 12) < 0.02).all()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_full_sequences_hold_every_token_once(case, length):
    encoded = CASES[case]
    packed = packing.full_sequences(encoded, sequence_length=length)
    assert_well_formed(packed, encoded, length)
    assert not packed["segments"].any() and (packed["is_next"] == 1).all()
    tokens = packed["tokens"].ravel()
    assert tokens[~np.isin(tokens, (PAD, CLS, SEP))].tolist() == encoded.ids.tolist()
    doubled = [(row[:-1] == SEP) & (row[1:] == SEP) for row in packed["tokens"]]
    assert not np.any(doubled)
    boundaries = sum(np.count_nonzero(row == SEP) - 1 for row in packed["tokens"])
    assert boundaries <= max(0, len(encoded.bounds) - 2)


def test_full_sequences_end_with_whole_words():
    encoded = documents(0, num_documents=10, longest=500)
    packed = packing.full_sequences(encoded, sequence_length=32)
    first = packed["tokens"][:, 1]
    assert encoded.starts[first - 5].all()
    assert ((packed["tokens"] != PAD).sum(1)[:-1] > 8).all()


def test_the_seed_is_all_that_is_random():
    encoded = documents(0, num_documents=10, longest=500)
    first, second, other = (packing.segment_pairs(encoded, sequence_length=32, seed=seed) for seed in (0, 0, 1))
    for name, column in first.items():
        np.testing.assert_array_equal(column, second[name])
    assert first["tokens"].shape != other["tokens"].shape or (first["tokens"] != other["tokens"]).any()
