"""Encodings with and without error feedback: configs, the verdict for each outcome, the table and the figure."""

from experiments.claims.encodings_compared import claim as encodings_compared

CLAIM, RUNS = encodings_compared.EXPERIMENT, encodings_compared.RUNS


def test_every_encoding_is_there_with_and_without_feedback():
    from reducers.wrappers.communication import COMMUNICATIONS

    names = {block["name"] for block in RUNS.encodings.values()}
    assert names == {*COMMUNICATIONS} - {"by_pattern"}
    assert len(RUNS.encodings) == 2 + 2 * (len(names) - 2)
