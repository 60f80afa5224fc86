"""Encodings with and without error feedback."""

from experiments.claims.encodings_compared import claim as encodings_compared

RUNS = encodings_compared.RUNS


def test_every_encoding_is_there_with_and_without_feedback():
    from reducers.wrappers.communication import COMMUNICATIONS

    names = {block["name"] for block in RUNS.encodings.values()}
    assert names == {*COMMUNICATIONS} - {"by_pattern", "float8"}  # which the runs do not have
    assert len(RUNS.encodings) == 2 + 2 * (len(names) - 2)
