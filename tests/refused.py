"""Refusals: one line, which names what is wrong."""

import contextlib

import pytest


@contextlib.contextmanager
def refused(error: type[Exception], match: str):
    """Expects an error whose message matches, and is one line."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def only_line_of(capsys) -> str:
    """Returns what was said on stderr since the last look, which must be one line, and nothing on stdout."""
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1, said
    return said.err


def line_of(capsys) -> str:
    """Returns what was said on stderr since the last look, which must be one line."""
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said
